/* What the fake GPUs are like, from a text file that is read again at each call. See state.c. */
#ifndef STATE_H
#define STATE_H

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int nvml_return;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

enum { NODE = -1, MOST_GPUS = 64 };

/* Begins a call: reads the file, suffers the faults it orders for `symbol` and `gpu` (NODE for none), and
 * returns what the call must return at once, or SUCCESS. */
nvml_return enter(const char *symbol, int gpu);

void read_state(void);
int has(int gpu, const char *key);
u64 number(int gpu, const char *key, u64 otherwise);
/* As `number`, but a value of NA in the file is NOT_SUPPORTED. */
nvml_return reading(int gpu, const char *key, u64 otherwise, u64 *out);
void text(int gpu, const char *key, const char *otherwise, char *out, u32 size);
/* The line after `line` (the first for NULL), or NULL. Ends with '\n'. */
const char *next_line(const char *line);
void pause_ms(long ms);

#endif
