/* A libcuda that knows the checkpoint calls and one process state, to see what the Python bindings really pass.
   Structures as in cuda.h of CUDA 13.0. Prints every call to standard error. */
#include "stub_libcuda.h"

typedef struct { unsigned char bytes[16]; } uuid;
typedef struct { uuid old, new; } gpu_pair;
typedef struct { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; } lock_args;
typedef struct { gpu_pair *pairs; unsigned count; char reserved[52]; } restore_args;

enum { INVALID_VALUE = 1, ILLEGAL_STATE = 401, NOT_READY = 600 };
enum { RUNNING, LOCKED, CHECKPOINTED };
enum { BYSTANDER = 1, STUCK = 9 };
static int state = RUNNING;

static int become(int from, int to) {
    if (state != from) return ILLEGAL_STATE;
    state = to;
    return SUCCESS;
}

static void print_uuid(const uuid *shown) {
    for (int at = 0; at < 16; at++) fprintf(stderr, "%02x", shown->bytes[at]);
}

static int init(unsigned flags) { fprintf(stderr, "init %u\n", flags); return SUCCESS; }
static int version(int *found) { *found = 13000; return SUCCESS; }

static int get_state(int pid, int *found) {
    if (pid == BYSTANDER) return INVALID_VALUE;
    *found = state;
    return SUCCESS;
}

static int lock(int pid, const lock_args *args) {
    fprintf(stderr, "lock %d %u\n", pid, args ? args->timeout_ms : 0);
    return pid == STUCK ? NOT_READY : become(RUNNING, LOCKED);
}

static int checkpoint(int pid, const void *args) {
    fprintf(stderr, "checkpoint %d %s\n", pid, args ? "args" : "-");
    return become(LOCKED, CHECKPOINTED);
}

static int restore(int pid, const restore_args *args) {
    fprintf(stderr, "restore %d", pid);
    for (unsigned at = 0; args && at < args->count; at++) {
        fprintf(stderr, " ");
        print_uuid(&args->pairs[at].old);
        fprintf(stderr, "=");
        print_uuid(&args->pairs[at].new);
    }
    fprintf(stderr, "\n");
    return become(CHECKPOINTED, LOCKED);
}

static int unlock(int pid, const void *args) {
    fprintf(stderr, "unlock %d %s\n", pid, args ? "args" : "-");
    return become(LOCKED, RUNNING);
}

int cuGetProcAddress_v2(const char *symbol, void **found, int at_version, uint64_t flags, int *status) {
    static const known_call known[] = {
        {"cuInit", init}, {"cuDriverGetVersion", version}, {"cuCheckpointProcessGetState", get_state},
        {"cuCheckpointProcessLock", lock}, {"cuCheckpointProcessCheckpoint", checkpoint},
        {"cuCheckpointProcessRestore", restore}, {"cuCheckpointProcessUnlock", unlock},
        {"cuGetProcAddress", cuGetProcAddress_v2},
    };
    (void)at_version, (void)flags;
    return look_up(known, sizeof known / sizeof *known, symbol, found, status);
}

int cuGetProcAddress(const char *symbol, void **found, int at_version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, found, at_version, flags, NULL);
}
