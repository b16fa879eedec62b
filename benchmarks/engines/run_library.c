/* Runs a compiled network as benchmarks/library.py asks: INPUTS OUTPUTS RUNS.

   Defined when it is compiled: HEADER, RUN (the function), IN (how many of the arrays are inputs),
   SIZES (bytes of all arrays). Prints when the first answer was there, what each run took, the peak of
   resident memory. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include HEADER

static const size_t sizes[] = {SIZES};
enum { ARRAYS = sizeof sizes / sizeof *sizes };
static _Alignas(NET_ARENA_ALIGNMENT) unsigned char arena[NET_ARENA_BYTES];

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv) {
  void *arrays[ARRAYS];
  net_io io;
  char line[256];
  if (argc != 4) return 1;
  FILE *inputs = fopen(argv[1], "rb"), *outputs = fopen(argv[2], "wb");
  if (!inputs || !outputs) return 1;
  for (int i = 0; i < ARRAYS; i++) {
    arrays[i] = malloc(sizes[i]);
    if (!arrays[i] || (i < IN && fread(arrays[i], 1, sizes[i], inputs) != sizes[i])) return 1;
  }
  memcpy(&io, arrays, sizeof io);
  if (net_init(arena) != NET_OK || RUN(&io, arena) != NET_OK) return 2;
  printf("%lld\n", now());
  for (int i = atoi(argv[3]); i > 0; i--) {
    long long start = now();
    RUN(&io, arena);
    printf("%lld\n", now() - start);
  }
  net_close(arena);
  for (int i = IN; i < ARRAYS; i++)
    if (fwrite(arrays[i], 1, sizes[i], outputs) != sizes[i]) return 1;
  fclose(outputs);
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    if (!strncmp(line, "VmHWM:", 6)) fputs(line, stdout);
  return 0;
}
