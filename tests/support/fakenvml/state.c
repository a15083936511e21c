/* The state file: $FAKE_NVML_STATE, lines of "KEY VALUE"; later ones win.
 *
 * gpu.N.KEY beats gpu.*.KEY. Keys of readings are beside the calls in fakenvml.c.
 * Faults, each with an optional "gpu.N." in front, where SYMBOL may be *:
 *   call.SYMBOL.ret CODE       the call returns CODE
 *   call.SYMBOL.sleep_ms MS    the call takes so much longer
 *   call.SYMBOL.hang sleep     the call sleeps until the line is gone
 *   call.SYMBOL.hang spin      the same, and keeps a CPU busy
 *   call.SYMBOL.hang stat      the call looks into $FAKE_NVML_HANG_PATH, which may be a filesystem that never answers
 *   call.SYMBOL.die SIGNAL     the process gets that signal
 *   call.SYMBOL.say TEXT       TEXT and a newline go to standard output
 *   gpu.N.lost 1               every call about this GPU returns GPU_IS_LOST
 */
#define _GNU_SOURCE
#include "state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static __thread char lines[1 << 17];

void read_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    size_t length = file ? fread(lines, 1, sizeof lines - 2, file) : 0;
    if (file)
        fclose(file);
    lines[length] = '\n';
    lines[length + 1] = 0;
}

const char *next_line(const char *line) {
    line = line ? strchr(line, '\n') + 1 : lines;
    return *line ? line : NULL;
}

static int find(const char *key, char *out, size_t size) {
    size_t key_length = strlen(key);
    int found = 0;
    for (const char *line = next_line(NULL); line; line = next_line(line)) {
        if (strncmp(line, key, key_length) != 0 || line[key_length] != ' ')
            continue;
        const char *value = line + key_length + 1;
        size_t length = strchr(value, '\n') - value;
        if (length >= size)
            length = size - 1;
        memcpy(out, value, length);
        out[length] = 0;
        found = 1;
    }
    return found;
}

static int lookup(int gpu, const char *key, char *out, size_t size) {
    char whole[256];
    if (gpu == NODE)
        return find(key, out, size);
    snprintf(whole, sizeof whole, "gpu.%d.%s", gpu, key);
    if (find(whole, out, size))
        return 1;
    snprintf(whole, sizeof whole, "gpu.*.%s", key);
    return find(whole, out, size);
}

int has(int gpu, const char *key) {
    char value[64];
    return lookup(gpu, key, value, sizeof value);
}

u64 number(int gpu, const char *key, u64 otherwise) {
    char value[64];
    return lookup(gpu, key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

nvml_return reading(int gpu, const char *key, u64 otherwise, u64 *out) {
    char value[64];
    *out = otherwise;
    if (!lookup(gpu, key, value, sizeof value))
        return SUCCESS;
    if (strcasecmp(value, "NA") == 0)
        return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

void text(int gpu, const char *key, const char *otherwise, char *out, u32 size) {
    if (!lookup(gpu, key, out, size))
        snprintf(out, size, "%s", otherwise);
}

void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static int fault(const char *symbol, int gpu, const char *kind, char *out, size_t size) {
    const char *names[] = {symbol, "*"};
    char key[160];
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "call.%s.%s", names[i], kind);
        if ((gpu != NODE && lookup(gpu, key, out, size)) || find(key, out, size))
            return 1;
    }
    return 0;
}

static void hang(const char *symbol, int gpu) {
    char how[16];
    struct stat status;
    const char *path = getenv("FAKE_NVML_HANG_PATH");
    while (fault(symbol, gpu, "hang", how, sizeof how)) {
        if (strcmp(how, "stat") == 0 && path)
            stat(path, &status);
        if (strcmp(how, "spin") != 0)
            pause_ms(20);
        read_state();
    }
}

nvml_return enter(const char *symbol, int gpu) {
    char value[128];
    read_state();
    if (fault(symbol, gpu, "say", value, sizeof value)) {
        puts(value);
        fflush(stdout);
    }
    if (fault(symbol, gpu, "die", value, sizeof value))
        kill(getpid(), atoi(value));
    if (fault(symbol, gpu, "sleep_ms", value, sizeof value))
        pause_ms(atol(value));
    hang(symbol, gpu);
    if (fault(symbol, gpu, "ret", value, sizeof value))
        return atoi(value);
    return gpu != NODE && number(gpu, "lost", 0) ? GPU_IS_LOST : SUCCESS;
}
