/* Messages of 64 bytes from one process to another through the C API, 256 in progress, posted and awaited in lists, or
 * one by one (LIST 1), as tools/scale does from Python: the difference is Python's.
 * small_messages [udp|auto] [COUNT] [LIST] prints one JSON object. LIST divides 256, and the program rounds COUNT down
 * to a multiple of LIST. */
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

static mlt_send_options sends[WINDOW];
static mlt_receive_options receives[WINDOW];

static void fill(unsigned char* buffer, int place) {
  mlt_send_options* send = &sends[place];
  mlt_receive_options* receive = &receives[place];
  send->size = sizeof *send;
  send->data = buffer;
  receive->size = sizeof *receive;
  receive->data = buffer;
  send->bytes = receive->bytes = BYTES;
  send->tag = receive->tag = (uint64_t)place;
  send->element = receive->element = MLT_UINT8;
  send->to = 1;
}

static void post(mlt_context* context, int rank, int place, int list, uint64_t* operations) {
  if (rank == 0) {
    ok(list == 1 ? mlt_post_send(context, &sends[place], &operations[place])
                 : mlt_post_sends(context, &sends[place], (size_t)list, &operations[place]));
  } else {
    ok(list == 1 ? mlt_post_receive(context, &receives[place], &operations[place])
                 : mlt_post_receives(context, &receives[place], (size_t)list, &operations[place]));
  }
}

static void await(mlt_context* context, int list, const uint64_t* operations) {
  static mlt_completion completions[WINDOW];
  int i;
  ok(list == 1 ? mlt_wait(context, operations[0], 60 * SECOND, completions, sizeof completions[0])
               : mlt_wait_all(context, operations, (size_t)list, 60 * SECOND, completions, sizeof completions[0]));
  for (i = 0; i < list; ++i) {
    ok(completions[i].error);
    mlt_completion_release(&completions[i]);
  }
}

int main(int argc, char** argv) {
  const char* const datapath = argc > 1 ? argv[1] : "udp";
  const int list = argc > 3 ? atoi(argv[3]) : 1;
  int count = argc > 2 ? atoi(argv[2]) : 200000;
  static unsigned char buffers[WINDOW][BYTES];
  uint64_t operations[WINDOW];
  int ports[2][2], rank, i;
  mlt_options options;
  mlt_context* context = NULL;
  mlt_peer peer;
  uint16_t port = 0;
  double began, lasted, cpu;
  pid_t child;
  if (list < 1 || WINDOW % list != 0 || count < WINDOW) {
    fprintf(stderr, "small_messages [udp|auto] [COUNT] [LIST]: COUNT is 256 or more, LIST a divisor of 256\n");
    return 2;
  }
  count -= count % list;
  for (i = 0; i < WINDOW; ++i) fill(buffers[i], i);
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
  for (i = 0; i < count; i += list) {
    if (i >= WINDOW) await(context, list, &operations[i % WINDOW]);
    post(context, rank, i % WINDOW, list, operations);
  }
  for (i = count - WINDOW; i < count; i += list) await(context, list, &operations[i % WINDOW]);
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
        "{\"datapath\": \"%s\", \"list\": %d, \"messages_per_second\": %.0f, \"sender_microseconds\": %.2f, "
        "\"receiver_microseconds\": %.2f}\n",
        datapath, list, count / lasted, 1e6 * cpu / count, 1e6 * other / count);
  }
  return 0;
}
