/* Messages of 64 bytes from one process to another through the C API, 256 in progress, posted and awaited one by one,
 * as tools/scale does from Python: the difference is Python's. small_messages [udp|auto] [COUNT] prints one JSON
 * object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mlt_c.h"

#define BYTES 64
#define WINDOW 256
#define SECOND ((int64_t)1000000000)

static void ok(int code) {
  if (code == MLT_OK) return;
  fprintf(stderr, "%s: %s\n", mlt_error_name(code), mlt_error_text());
  exit(1);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double cpu_seconds(int who) {
  struct rusage used;
  getrusage(who, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static uint64_t post(mlt_context* context, int rank, unsigned char* buffer, uint64_t tag) {
  uint64_t operation = 0;
  if (rank == 0) {
    mlt_send_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.data = buffer;
    options.bytes = BYTES;
    options.tag = tag;
    options.element = MLT_UINT8;
    options.to = 1;
    ok(mlt_post_send(context, &options, &operation));
  } else {
    mlt_receive_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.data = buffer;
    options.bytes = BYTES;
    options.tag = tag;
    options.element = MLT_UINT8;
    options.from = 0;
    ok(mlt_post_receive(context, &options, &operation));
  }
  return operation;
}

static void await(mlt_context* context, uint64_t operation) {
  mlt_completion completion;
  ok(mlt_wait(context, operation, 60 * SECOND, &completion, sizeof completion));
  mlt_completion_release(&completion);
}

int main(int argc, char** argv) {
  const char* const datapath = argc > 1 ? argv[1] : "udp";
  const int count = argc > 2 ? atoi(argv[2]) : 200000;
  static unsigned char buffers[WINDOW][BYTES];
  uint64_t operations[WINDOW];
  int ports[2][2], rank, i;
  mlt_options options;
  mlt_context* context = NULL;
  mlt_peer peer;
  uint16_t port = 0;
  double began, lasted, cpu;
  pid_t child;
  if (pipe(ports[0]) != 0 || pipe(ports[1]) != 0) return 1;
  child = fork();
  rank = child == 0 ? 1 : 0;
  ok(mlt_options_init(&options, sizeof options));
  options.rank = (uint16_t)rank;
  options.ranks = 2;
  options.job = 7;
  options.datapath = datapath;
  ok(mlt_create(&options, &context));
  port = mlt_control_port(context);
  if (write(ports[rank][1], &port, sizeof port) != sizeof port) return 1;
  if (read(ports[1 - rank][0], &port, sizeof port) != sizeof port) return 1;
  memset(&peer, 0, sizeof peer);
  peer.size = sizeof peer;
  peer.host = "127.0.0.1";
  peer.rank = (uint16_t)(1 - rank);
  peer.control_port = port;
  ok(mlt_connect(context, &peer, 1, 10 * SECOND));
  began = seconds();
  cpu = cpu_seconds(RUSAGE_SELF);
  for (i = 0; i < count; ++i) {
    if (i >= WINDOW) await(context, operations[i % WINDOW]);
    operations[i % WINDOW] = post(context, rank, buffers[i % WINDOW], (uint64_t)(i % WINDOW));
  }
  for (i = count > WINDOW ? count - WINDOW : 0; i < count; ++i) await(context, operations[i % WINDOW]);
  lasted = seconds() - began;
  cpu = cpu_seconds(RUSAGE_SELF) - cpu;
  ok(mlt_close(context, NULL));
  mlt_destroy(context);
  if (rank == 1) {
    if (write(ports[1][1], &cpu, sizeof cpu) != sizeof cpu) return 1;
    return 0;
  }
  {
    double other = 0;
    if (read(ports[1][0], &other, sizeof other) != sizeof other) return 1;
    waitpid(child, NULL, 0);
    printf(
        "{\"datapath\": \"%s\", \"messages_per_second\": %.0f, \"sender_microseconds\": %.2f, "
        "\"receiver_microseconds\": %.2f}\n",
        datapath, count / lasted, 1e6 * cpu / count, 1e6 * other / count);
  }
  return 0;
}
