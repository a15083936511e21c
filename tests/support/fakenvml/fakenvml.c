/* libnvidia-ml.so.1 for tests: eight H100 unless the state file (state.c) says otherwise.
 *
 * Sizes of structures are those of pynvml on x86-64. Node-wide keys: driver, nvml, cuda, device_count.
 * Keys of a GPU ("gpu.N." or "gpu.*." in front) are the strings below; a value of NA is "not supported".
 * One event each: "event.SEQUENCE GPU TYPE DATA [GPU_INSTANCE COMPUTE_INSTANCE]", delivered in order of SEQUENCE.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define NONE 0xffffffffu

/* A GPU, or a MIG device of it. */
struct device {
    int gpu;
    int mig; /* -1 for the GPU itself */
};

enum { MOST_MIG = 7 };
static struct device gpus[MOST_GPUS], mig_devices[MOST_GPUS][MOST_MIG];
static int is_initialised;

#define BEGIN(gpu)                                                                                          \
    do {                                                                                                    \
        nvml_return begun = enter(__func__, gpu);                                                           \
        if (!is_initialised)                                                                                \
            return UNINITIALIZED;                                                                           \
        if (begun != SUCCESS)                                                                               \
            return begun;                                                                                   \
    } while (0)

#define NUMBER_OF_GPU(symbol, type, key, otherwise)                                                         \
    EXPORT nvml_return symbol(struct device *device, type *out) {                                           \
        BEGIN(device->gpu);                                                                                 \
        u64 value;                                                                                          \
        nvml_return result = reading(device->gpu, key, otherwise, &value);                                  \
        *out = (type)value;                                                                                 \
        return result;                                                                                      \
    }

static nvml_return text_out(int gpu, const char *key, const char *otherwise, char *out, u32 size) {
    char value[256];
    text(gpu, key, otherwise, value, sizeof value);
    if (strcasecmp(value, "NA") == 0)
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* ---- system ---- */

EXPORT nvml_return nvmlInitWithFlags(u32 flags) {
    (void)flags;
    nvml_return begun = enter(__func__, NODE);
    if (begun != SUCCESS)
        return begun;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        gpus[gpu] = (struct device){gpu, -1};
        for (int mig = 0; mig < MOST_MIG; mig++)
            mig_devices[gpu][mig] = (struct device){gpu, mig};
    }
    is_initialised = 1;
    return SUCCESS;
}

EXPORT nvml_return nvmlShutdown(void) {
    BEGIN(NODE);
    is_initialised = 0;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(nvml_return code) {
    static const struct {
        nvml_return code;
        const char *text;
    } known[] = {
        {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"}, {4, "Insufficient Permissions"},
        {6, "Not Found"}, {9, "Driver Not Loaded"}, {10, "Timeout"}, {13, "Function Not Found"},
        {14, "Corrupted infoROM"}, {15, "GPU is lost"}, {16, "GPU requires reset"},
        {18, "RM has detected an NVML/RM version mismatch."}, {999, "Unknown Error"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code)
            return known[i].text;
    return "Fake NVML error";
}

EXPORT nvml_return nvmlSystemGetDriverVersion(char *out, u32 size) {
    BEGIN(NODE);
    return text_out(NODE, "driver", "570.148.08", out, size);
}

EXPORT nvml_return nvmlSystemGetNVMLVersion(char *out, u32 size) {
    BEGIN(NODE);
    return text_out(NODE, "nvml", "12.570.148.08", out, size);
}

EXPORT nvml_return nvmlSystemGetCudaDriverVersion_v2(int *out) {
    BEGIN(NODE);
    *out = (int)number(NODE, "cuda", 12080);
    return SUCCESS;
}

static u32 device_count(void) {
    u64 count = number(NODE, "device_count", 8);
    return count < MOST_GPUS ? (u32)count : MOST_GPUS;
}

EXPORT nvml_return nvmlDeviceGetCount_v2(u32 *out) {
    BEGIN(NODE);
    *out = device_count(); /* a lost GPU is still counted */
    return SUCCESS;
}

/* ---- identity ---- */

EXPORT nvml_return nvmlDeviceGetHandleByIndex_v2(u32 index, struct device **out) {
    BEGIN((int)index);
    if (index >= device_count())
        return INVALID_ARGUMENT;
    *out = &gpus[index];
    return SUCCESS;
}

EXPORT nvml_return nvmlDeviceGetName(struct device *device, char *out, u32 size) {
    BEGIN(device->gpu);
    return text_out(device->gpu, "name", "NVIDIA H100 80GB HBM3", out, size);
}

EXPORT nvml_return nvmlDeviceGetUUID(struct device *device, char *out, u32 size) {
    char key[32] = "uuid", otherwise[64];
    BEGIN(device->gpu);
    snprintf(otherwise, sizeof otherwise, "GPU-00000000-0000-0000-0000-%012d", device->gpu);
    if (device->mig >= 0) {
        snprintf(key, sizeof key, "mig.%d.uuid", device->mig);
        snprintf(otherwise, sizeof otherwise, "MIG-00000000-0000-0000-%04d-%012d", device->gpu, device->mig);
    }
    return text_out(device->gpu, key, otherwise, out, size);
}

EXPORT nvml_return nvmlDeviceGetSerial(struct device *device, char *out, u32 size) {
    char otherwise[32];
    BEGIN(device->gpu);
    snprintf(otherwise, sizeof otherwise, "165%010d", device->gpu);
    return text_out(device->gpu, "serial", otherwise, out, size);
}

/* Version 3 of the call. */
struct pci_info {
    char bus_id_legacy[16];
    u32 domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");

static void fill_pci_info(const char *address, struct pci_info *out) {
    memset(out, 0, sizeof *out);
    sscanf(address, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
             out->bus & 0xff, out->device & 0x1f);
    out->pci_device_id = 0x233010de;
}

EXPORT nvml_return nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out) {
    char otherwise[32], address[64];
    BEGIN(device->gpu);
    snprintf(otherwise, sizeof otherwise, "00000000:%02X:00.0", 0x10 + device->gpu);
    text(device->gpu, "bus", otherwise, address, sizeof address);
    fill_pci_info(address, out);
    return SUCCESS;
}

NUMBER_OF_GPU(nvmlDeviceGetMinorNumber, u32, "minor", (u64)device->gpu)
NUMBER_OF_GPU(nvmlDeviceGetVirtualizationMode, u64, "virtualization", 0)
NUMBER_OF_GPU(nvmlDeviceGetPerformanceState, u32, "pstate", 0)
NUMBER_OF_GPU(nvmlDeviceGetPersistenceMode, u32, "persistence", 1)
NUMBER_OF_GPU(nvmlDeviceGetComputeMode, u32, "compute_mode", 0)

/* ---- MIG ---- */

static nvml_return mode_out(int gpu, const char *key, u64 otherwise, u32 *current, u32 *pending) {
    char pending_key[64];
    u64 value;
    nvml_return result = reading(gpu, key, otherwise, &value);
    snprintf(pending_key, sizeof pending_key, "%s.pending", key);
    *current = (u32)value;
    *pending = (u32)number(gpu, pending_key, value);
    return result;
}

EXPORT nvml_return nvmlDeviceGetMigMode(struct device *device, u32 *current, u32 *pending) {
    BEGIN(device->gpu);
    return mode_out(device->gpu, "mig", 0, current, pending);
}

NUMBER_OF_GPU(nvmlDeviceGetMaxMigDeviceCount, u32, "mig.most", MOST_MIG)

EXPORT nvml_return nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, u32 index, struct device **out) {
    BEGIN(device->gpu);
    if (index >= number(device->gpu, "mig.devices", 0))
        return NOT_FOUND;
    *out = &mig_devices[device->gpu][index];
    return SUCCESS;
}

EXPORT nvml_return nvmlDeviceGetGpuInstanceId(struct device *device, u32 *out) {
    BEGIN(device->gpu);
    *out = (u32)device->mig + 1;
    return SUCCESS;
}

EXPORT nvml_return nvmlDeviceGetComputeInstanceId(struct device *device, u32 *out) {
    BEGIN(device->gpu);
    *out = 0;
    return SUCCESS;
}

/* ---- memory, ECC, repairs ---- */

struct memory {
    u64 total, free, used;
};
_Static_assert(sizeof(struct memory) == 24, "nvmlMemory_t");

EXPORT nvml_return nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out) {
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "mem.total", 85899345920ull, &out->total);
    out->used = number(device->gpu, "mem.used", 4 << 20) + number(device->gpu, "mem.reserved", 600 << 20);
    out->free = out->total - out->used;
    return result;
}

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");

EXPORT nvml_return nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *out) {
    BEGIN(device->gpu);
    if (out->version != 0x2000028)
        return VERSION_MISMATCH;
    nvml_return result = reading(device->gpu, "mem.total", 85899345920ull, &out->total);
    out->used = number(device->gpu, "mem.used", 4 << 20);
    out->reserved = number(device->gpu, "mem.reserved", 600 << 20);
    out->free = out->total - out->used - out->reserved;
    return result;
}

EXPORT nvml_return nvmlDeviceGetEccMode(struct device *device, u32 *current, u32 *pending) {
    BEGIN(device->gpu);
    return mode_out(device->gpu, "ecc", 1, current, pending);
}

EXPORT nvml_return nvmlDeviceGetTotalEccErrors(struct device *device, u32 type, u32 counter, u64 *out) {
    char key[32];
    BEGIN(device->gpu);
    if (!number(device->gpu, "ecc", 1))
        return NOT_SUPPORTED;
    snprintf(key, sizeof key, "ecc.%s.%s", counter ? "aggregate" : "volatile", type ? "uncorrected" : "corrected");
    return reading(device->gpu, key, 0, out);
}

struct sram_status {
    u32 version;
    u64 counters[11];
    u32 is_threshold_exceeded;
};
_Static_assert(sizeof(struct sram_status) == 104, "nvmlEccSramErrorStatus_v1_t");

EXPORT nvml_return nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_status *out) {
    u64 value;
    BEGIN(device->gpu);
    if (out->version != 0x1000068)
        return VERSION_MISMATCH;
    nvml_return result = reading(device->gpu, "sram.threshold", 0, &value);
    memset(out->counters, 0, sizeof out->counters);
    out->is_threshold_exceeded = (u32)value;
    return result;
}

EXPORT nvml_return nvmlDeviceGetRemappedRows(struct device *device, u32 *correctable, u32 *uncorrectable,
                                             u32 *is_pending, u32 *has_failed) {
    u64 value;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "remap.uncorrectable", 0, &value);
    *uncorrectable = (u32)value;
    *correctable = (u32)number(device->gpu, "remap.correctable", 0);
    *is_pending = (u32)number(device->gpu, "remap.pending", 0);
    *has_failed = (u32)number(device->gpu, "remap.failed", 0);
    return result;
}

EXPORT nvml_return nvmlDeviceGetRetiredPages(struct device *device, u32 cause, u32 *count, u64 *addresses) {
    u64 pages;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, cause ? "retired.double" : "retired.single", 0, &pages);
    if (result != SUCCESS)
        return result;
    u32 room = *count;
    *count = (u32)pages;
    if (room < pages)
        return INSUFFICIENT_SIZE;
    for (u64 page = 0; addresses && page < pages; page++)
        addresses[page] = page << 12;
    return SUCCESS;
}

NUMBER_OF_GPU(nvmlDeviceGetRetiredPagesPendingStatus, u32, "retired.pending", 0)

struct repair_status {
    u32 version, channel, tpc;
};
_Static_assert(sizeof(struct repair_status) == 12, "nvmlRepairStatus_v1_t");

EXPORT nvml_return nvmlDeviceGetRepairStatus(struct device *device, struct repair_status *out) {
    u64 value;
    BEGIN(device->gpu);
    if (out->version != 0x100000c)
        return VERSION_MISMATCH;
    nvml_return result = reading(device->gpu, "repair.channel", 0, &value);
    out->channel = (u32)value;
    out->tpc = (u32)number(device->gpu, "repair.tpc", 0);
    return result;
}

struct unrepairable_memory {
    u32 version, flag;
};
_Static_assert(sizeof(struct unrepairable_memory) == 8, "nvmlUnrepairableMemory_v1_t");

EXPORT nvml_return nvmlDeviceGetUnrepairableMemoryFlag_v1(struct device *device, struct unrepairable_memory *out) {
    u64 value;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "unrepairable", 0, &value);
    out->flag = (u32)value;
    return result;
}

EXPORT nvml_return nvmlDeviceValidateInforom(struct device *device) {
    BEGIN(device->gpu);
    return SUCCESS;
}

/* ---- temperature, clocks, PCIe ---- */

EXPORT nvml_return nvmlDeviceGetTemperature(struct device *device, u32 sensor, u32 *out) {
    u64 value;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "temperature", 35, &value);
    *out = (u32)value;
    return sensor ? INVALID_ARGUMENT : result;
}

EXPORT nvml_return nvmlDeviceGetTemperatureThreshold(struct device *device, u32 which, u32 *out) {
    static const u32 otherwise[] = {92, 89, 95, 87};
    char key[48];
    u64 value;
    BEGIN(device->gpu);
    if (which > 3)
        return NOT_SUPPORTED;
    snprintf(key, sizeof key, "temperature.threshold.%u", which);
    nvml_return result = reading(device->gpu, key, otherwise[which], &value);
    *out = (u32)value;
    return result;
}

struct margin {
    u32 version;
    int margin;
};
_Static_assert(sizeof(struct margin) == 8, "nvmlMarginTemperature_v1_t");

EXPORT nvml_return nvmlDeviceGetMarginTemperature(struct device *device, struct margin *out) {
    u64 value;
    BEGIN(device->gpu);
    if (out->version != 0x1000008)
        return VERSION_MISMATCH;
    nvml_return result = reading(device->gpu, "temperature.margin", 52, &value);
    out->margin = (int)value;
    return result;
}

NUMBER_OF_GPU(nvmlDeviceGetCurrentClocksEventReasons, u64, "clocks.reasons", 1)
NUMBER_OF_GPU(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "clocks.reasons", 1)
NUMBER_OF_GPU(nvmlDeviceGetCurrPcieLinkGeneration, u32, "pcie.generation", 5)
NUMBER_OF_GPU(nvmlDeviceGetMaxPcieLinkGeneration, u32, "pcie.generation.max", 5)
NUMBER_OF_GPU(nvmlDeviceGetCurrPcieLinkWidth, u32, "pcie.width", 16)
NUMBER_OF_GPU(nvmlDeviceGetMaxPcieLinkWidth, u32, "pcie.width.max", 16)
NUMBER_OF_GPU(nvmlDeviceGetPcieReplayCounter, u32, "pcie.replays", 0)

/* ---- processes: "PID:MIB,..."; MIB may be NA ---- */

struct process {
    u32 pid;
    u64 used_bytes;
    u32 gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_v3_t");

static nvml_return processes_out(int gpu, const char *key, u32 *count, struct process *out) {
    char list[1024];
    u32 room = *count;
    text(gpu, key, "", list, sizeof list);
    if (strcasecmp(list, "NA") == 0)
        return NOT_SUPPORTED;
    *count = 0;
    for (char *entry = strtok(list, ","); entry; entry = strtok(NULL, ",")) {
        char *memory = strchr(entry, ':') + 1;
        u64 used = strcmp(memory, "NA") == 0 ? ~0ull : strtoull(memory, NULL, 0) << 20;
        if (out && *count < room)
            out[*count] = (struct process){(u32)atoi(entry), used, NONE, NONE};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(symbol, key)                                                                              \
    EXPORT nvml_return symbol(struct device *device, u32 *count, struct process *out) {                     \
        BEGIN(device->gpu);                                                                                 \
        return processes_out(device->gpu, key, count, out);                                                 \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "processes.graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "processes.mps")

/* ---- NVLink, fabric, peers ---- */

EXPORT nvml_return nvmlDeviceGetNvLinkState(struct device *device, u32 link, u32 *out) {
    char key[48];
    u64 value, count;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "nvlink.count", 18, &count);
    if (result != SUCCESS)
        return result;
    if (link >= count)
        return (nvml_return)number(device->gpu, "nvlink.beyond", INVALID_ARGUMENT);
    snprintf(key, sizeof key, "nvlink.%u.ret", link);
    if (has(device->gpu, key))
        return (nvml_return)number(device->gpu, key, 0);
    snprintf(key, sizeof key, "nvlink.%u.state", link);
    result = reading(device->gpu, key, number(device->gpu, "nvlink.state", 1), &value);
    *out = (u32)value;
    return result;
}

EXPORT nvml_return nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, u32 link, struct pci_info *out) {
    char key[48], address[64];
    BEGIN(device->gpu);
    snprintf(key, sizeof key, "nvlink.%u.remote", link);
    text(device->gpu, has(device->gpu, key) ? key : "nvlink.remote", "00000000:05:00.0", address, sizeof address);
    if (strcasecmp(address, "NA") == 0)
        return NOT_SUPPORTED;
    fill_pci_info(address, out);
    return SUCCESS;
}

EXPORT nvml_return nvmlDeviceGetP2PStatus(struct device *device, struct device *other, u32 index, u32 *out) {
    char key[32];
    u64 value;
    (void)index;
    BEGIN(device->gpu);
    snprintf(key, sizeof key, "p2p.%d", other->gpu);
    nvml_return result = reading(device->gpu, key, 0, &value);
    *out = (u32)value;
    return result;
}

/* Version 3 of the structure; version 2 ends before `summary`, version 1 also begins after `version`. */
struct fabric {
    u32 version;
    uint8_t cluster[16];
    u32 status, clique, state, health_mask;
    uint8_t summary;
};
_Static_assert(sizeof(struct fabric) == 40, "nvmlGpuFabricInfo_v3_t");

static nvml_return fill_fabric(int gpu, struct fabric *out) {
    u64 state;
    nvml_return result = reading(gpu, "fabric.state", 3, &state);
    memset(out->cluster, 0xab, sizeof out->cluster);
    out->state = (u32)state;
    out->status = (u32)number(gpu, "fabric.status", 0);
    out->clique = (u32)number(gpu, "fabric.clique", 0);
    out->health_mask = (u32)number(gpu, "fabric.mask", 0x1aa); /* nothing of it is wrong */
    out->summary = (uint8_t)number(gpu, "fabric.summary", 1);
    return result;
}

EXPORT nvml_return nvmlDeviceGetGpuFabricInfo(struct device *device, void *out) {
    struct fabric fabric;
    BEGIN(device->gpu);
    nvml_return result = fill_fabric(device->gpu, &fabric);
    memcpy(out, fabric.cluster, 28);
    return result;
}

EXPORT nvml_return nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out) {
    struct fabric fabric = {.version = out->version};
    BEGIN(device->gpu);
    u32 newest = (u32)number(NODE, "fabric.newest", 0x3000028);
    if ((out->version != 0x2000024 && out->version != 0x3000028) || out->version > newest)
        return VERSION_MISMATCH;
    nvml_return result = fill_fabric(device->gpu, &fabric);
    memcpy(out, &fabric, out->version == 0x3000028 ? 40 : 36);
    return result;
}

/* ---- field values: field.ID[.SCOPE] is the value, with ".ret" behind it the field's own return code ---- */

struct field_value {
    u32 id, scope;
    int64_t timestamp, latency;
    u32 type;
    nvml_return result;
    u64 value;
};
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");

enum { MEMORY_TEMPERATURE = 82, LINK_REPLAY = 161, LINK_CRC = 163, LINK_SPEED = 164, RECOVERY_ACTION = 230 };
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

static nvml_return default_of_field(u32 id, u64 *out) {
    char driver[32];
    *out = 0;
    if (id == MEMORY_TEMPERATURE)
        *out = 40;
    else if (id == LINK_SPEED)
        *out = 26562;
    else if (id == RECOVERY_ACTION) {
        text(NODE, "driver", "570.148.08", driver, sizeof driver);
        return atoi(driver) < 570 ? NOT_SUPPORTED : SUCCESS;
    } else if (id < LINK_REPLAY || id > LINK_CRC)
        return NOT_SUPPORTED;
    return SUCCESS;
}

static void fill_field(int gpu, struct field_value *out) {
    char key[48], result_key[56];
    snprintf(key, sizeof key, "field.%u.%u", out->id, out->scope);
    snprintf(result_key, sizeof result_key, "%s.ret", key);
    if (!has(gpu, key) && !has(gpu, result_key)) {
        snprintf(key, sizeof key, "field.%u", out->id);
        snprintf(result_key, sizeof result_key, "%s.ret", key);
    }
    u64 otherwise;
    nvml_return result = default_of_field(out->id, &otherwise);
    if (has(gpu, key))
        result = reading(gpu, key, 0, &otherwise);
    out->result = (nvml_return)number(gpu, result_key, (u64)result);
    out->timestamp = (int64_t)time(NULL) * 1000000;
    out->latency = 0;
    out->type = out->id == RECOVERY_ACTION || out->id == MEMORY_TEMPERATURE ? UNSIGNED_INT : UNSIGNED_LONG_LONG;
    out->value = out->result == SUCCESS ? otherwise : 0; /* a failure looks like a healthy zero */
}

EXPORT nvml_return nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *values) {
    BEGIN(device->gpu);
    for (int i = 0; i < count; i++)
        fill_field(device->gpu, &values[i]);
    return SUCCESS;
}

/* ---- events ---- */

struct event_set {
    u64 masks[MOST_GPUS];
    long last;
};

struct event {
    struct device *device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct event) == 32, "nvmlEventData_t");

EXPORT nvml_return nvmlEventSetCreate(struct event_set **out) {
    BEGIN(NODE);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

NUMBER_OF_GPU(nvmlDeviceGetSupportedEventTypes, u64, "events.supported", 0x19f)

static long newest_event(void) {
    long sequence, newest = 0;
    for (const char *line = next_line(NULL); line; line = next_line(line))
        if (sscanf(line, "event.%ld ", &sequence) == 1 && sequence > newest)
            newest = sequence;
    return newest;
}

EXPORT nvml_return nvmlDeviceRegisterEvents(struct device *device, u64 types, struct event_set *set) {
    u64 supported;
    int is_first = 1;
    BEGIN(device->gpu);
    nvml_return result = reading(device->gpu, "events.supported", 0x19f, &supported);
    if (result != SUCCESS || types & ~supported)
        return NOT_SUPPORTED;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++)
        is_first = is_first && !set->masks[gpu];
    if (is_first)
        set->last = newest_event(); /* what was before the registration is never delivered */
    set->masks[device->gpu] |= types;
    return SUCCESS;
}

static int next_event(struct event_set *set, struct event *out) {
    long best = 0, sequence;
    int gpu;
    for (const char *line = next_line(NULL); line; line = next_line(line)) {
        u64 type, data;
        u32 gpu_instance = NONE, compute_instance = NONE;
        if (sscanf(line, "event.%ld %d %llu %llu %u %u", &sequence, &gpu, &type, &data, &gpu_instance,
                   &compute_instance) < 4)
            continue;
        if (sequence <= set->last || (best && sequence > best) || !(set->masks[gpu] & type))
            continue;
        best = sequence;
        *out = (struct event){&gpus[gpu], type, data, gpu_instance, compute_instance};
    }
    if (best)
        set->last = best;
    return best != 0;
}

EXPORT nvml_return nvmlEventSetWait_v2(struct event_set *set, struct event *out, u32 timeout_ms) {
    BEGIN(NODE);
    for (u32 waited_ms = 0; !next_event(set, out); waited_ms++) {
        if (waited_ms >= timeout_ms)
            return TIMEOUT;
        pause_ms(1);
        read_state();
    }
    return SUCCESS;
}
