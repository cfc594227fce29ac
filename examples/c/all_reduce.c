/* All-reduce of a gradient between the ranks of a job, through the C API (docs/c-api.md).
 *
 *   cc -std=c99 all_reduce.c -o all_reduce $(pkg-config --cflags --libs mlt)
 *   ./all_reduce 0 127.0.0.1:7001 127.0.0.1:7002 &
 *   ./all_reduce 1 127.0.0.1:7001 127.0.0.1:7002
 *
 * The arguments are this rank's number and the address of every rank, rank 0 first. Between hosts a job needs a secret:
 * put the same 16 bytes or more into MLT_JOB_SECRET of every rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlt_c.h"

#define ELEMENTS 1000000
#define MAX_RANKS 64

static float gradient[ELEMENTS];
static char hosts[MAX_RANKS][256];

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, mlt_error_text());
  return 1;
}

/* "host:port" or "[host]:port", into hosts[rank]; the port, or 0. */
static uint16_t parse(const char* text, int rank) {
  const char* colon = strrchr(text, ':');
  char* end;
  size_t length;
  long port;
  if (colon == NULL) return 0;
  length = (size_t)(colon - text);
  if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
    ++text;
    length -= 2;
  }
  if (length == 0 || length >= sizeof hosts[rank]) return 0;
  memcpy(hosts[rank], text, length);
  port = strtol(colon + 1, &end, 10);
  return *end == '\0' && port > 0 && port < 65536 ? (uint16_t)port : 0;
}

static int run(mlt_context* context, const mlt_peer* peers, size_t peer_count, uint16_t rank) {
  mlt_collective_options options;
  mlt_completion done;
  uint64_t operation;
  size_t i;
  int error;
  if (mlt_connect(context, peers, peer_count, INT64_C(60000000000)) != MLT_OK) return failed("connect");
  for (i = 0; i < ELEMENTS; ++i) gradient[i] = (float)rank;

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.output = gradient; /* in place */
  options.output_bytes = sizeof gradient;
  options.element = MLT_FLOAT32;
  options.reduction = MLT_MEAN;
  options.loss_bound = 0.01; /* up to 1 % of what this rank receives may be missing */
  if (mlt_post_all_reduce(context, &options, &operation) != MLT_OK) return failed("all-reduce");
  if (mlt_wait(context, operation, -1, &done, sizeof done) != MLT_OK) return failed("wait");
  error = done.error;
  if (error != MLT_OK) {
    fprintf(stderr, "%s: %s\n", mlt_error_name(error), done.text);
  } else {
    printf("rank %u: mean %g, %llu bytes missing, %.1f ms\n", (unsigned)rank, gradient[0],
           (unsigned long long)done.missing_bytes, (double)done.elapsed_ns / 1e6);
  }
  mlt_completion_release(&done);
  return error != MLT_OK;
}

int main(int argc, char** argv) {
  static mlt_peer peers[MAX_RANKS];
  const char* secret = getenv("MLT_JOB_SECRET");
  mlt_options options;
  mlt_context* context;
  size_t peer_count = 0;
  int ranks = argc - 2, own, i, result;
  char* end;
  if (ranks < 2 || ranks > MAX_RANKS) {
    fprintf(stderr, "usage: %s RANK HOST:PORT HOST:PORT ...   (2 to %d ranks, rank 0 first)\n", argv[0], MAX_RANKS);
    return 2;
  }
  own = (int)strtol(argv[1], &end, 10);
  if (*argv[1] == '\0' || *end != '\0' || own < 0 || own >= ranks) {
    fprintf(stderr, "RANK is %s; it must be 0 to %d\n", argv[1], ranks - 1);
    return 2;
  }
  if (mlt_options_init(&options, sizeof options) != MLT_OK) return failed("options");
  options.rank = (uint16_t)own;
  options.ranks = (uint16_t)ranks;
  options.job = 1;
  if (secret != NULL) {
    options.secret = secret;
    options.secret_bytes = strlen(secret);
  }
  for (i = 0; i < ranks; ++i) {
    const uint16_t port = parse(argv[i + 2], i);
    if (port == 0) {
      fprintf(stderr, "%s is no HOST:PORT\n", argv[i + 2]);
      return 2;
    }
    if (i == own) {
      options.host = hosts[i];
      options.control_port = port;
    } else {
      peers[peer_count].size = sizeof peers[peer_count];
      peers[peer_count].host = hosts[i];
      peers[peer_count].rank = (uint16_t)i;
      peers[peer_count].control_port = port;
      ++peer_count;
    }
  }
  if (mlt_create(&options, &context) != MLT_OK) return failed("create");
  result = run(context, peers, peer_count, (uint16_t)own);
  mlt_destroy(context);
  return result;
}
