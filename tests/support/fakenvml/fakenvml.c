/* libnvidia-ml.so.1 for tests: as much of NVML as `ftrun.healthchecks.nvml` calls.
 *
 * FAKE_NVML_GPUS  "UUID@BUS_ID,..." lists the GPUs; a BUS_ID of "lost" makes the device's handle fail with 15
 * FAKE_NVML_INIT  what nvmlInit returns (9 = driver not loaded); "hang" makes it never return
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, GPU_IS_LOST = 15, MOST_GPUS = 16 };

struct gpu {
    char uuid[96];
    char bus_id[32];
};

/* nvmlPciInfo_t of version 3 of the call: 68 bytes. */
struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

static struct gpu gpus[MOST_GPUS];
static unsigned count;

int nvmlInitWithFlags(unsigned flags) {
    const char *list = getenv("FAKE_NVML_GPUS"), *init = getenv("FAKE_NVML_INIT");
    (void)flags;
    if (init && strcmp(init, "hang") == 0)
        for (;;)
            pause();
    count = 0;
    while (list && count < MOST_GPUS && sscanf(list, "%95[^@]@%31[^,]", gpus[count].uuid, gpus[count].bus_id) == 2) {
        count++;
        list = strchr(list, ',');
        if (list)
            list++;
    }
    return init ? atoi(init) : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "GPU is lost"; }

int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **out) {
    if (index >= count)
        return INVALID_ARGUMENT;
    *out = &gpus[index];
    return strcmp(gpus[index].bus_id, "lost") == 0 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *out, unsigned length) {
    snprintf(out, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci_info *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", gpu->bus_id);
    return SUCCESS;
}
