/* An NVTX tool: writes every range that is pushed, as "PID DOMAIN NAME PAYLOAD", to the file $NVTX_HEARD.

   Built by tests/report/test_explain.py and loaded through NVTX_INJECTION64_PATH, as nsys loads its own. The numbers are
   those of nvtx3/nvtxDetail/nvtxTypes.h. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLBACKS = 1, CORE2 = 5, RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12, REGISTERED = 3 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    int64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;

typedef struct {
    size_t size;
    int (*module_functions)(int module, void ***(*table), unsigned *count);
} Callbacks;

static int heard = -1;

static const char *keep(const char *name) { return strdup(name); }
static const char *register_string(const char *domain, const char *name) { (void)domain; return strdup(name); }
static int pop(const char *domain) { (void)domain; return 0; }

static int push(const char *domain, const Attributes *event) {
    char line[256];
    const char *name = event->message_type == REGISTERED ? event->message : "?";
    int length = snprintf(line, sizeof line, "%d %s %s %lld\n", getpid(), domain, name, (long long)event->payload);
    return (int)write(heard, line, length); /* one write, appended: whole lines from many processes */
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const Callbacks *callbacks = export_table(CALLBACKS);
    void ***table;
    unsigned count;
    heard = open(getenv("NVTX_HEARD"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (heard < 0 || !callbacks->module_functions(CORE2, &table, &count) || count <= DOMAIN_CREATE) return 0;
    *table[DOMAIN_CREATE] = (void *)keep;
    *table[REGISTER_STRING] = (void *)register_string;
    *table[RANGE_PUSH] = (void *)push;
    *table[RANGE_POP] = (void *)pop;
    return 1;
}
