/* The C API, from C: two ranks of one process over loopback, and every bad input. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mlt_c.h"

#define SECOND INT64_C(1000000000)
#define LONG_WAIT (30 * SECOND)
#define COUNT 100000

#define CHECK(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      printf("%s:%d: CHECK(%s) failed; last error: %s\n", __FILE__, __LINE__, #condition, mlt_error_text()); \
      fflush(stdout);                                                                                        \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)
#define OK(call) CHECK((call) == MLT_OK)
/* The call fails with this code, and the text has this part. */
#define FAILS(call, code, part)                      \
  do {                                               \
    CHECK((call) == (code));                         \
    CHECK(strstr(mlt_error_text(), (part)) != NULL); \
  } while (0)

static mlt_context* contexts[2];

static mlt_context* create(uint16_t rank, uint16_t ranks) {
  mlt_options options;
  mlt_context* context = NULL;
  OK(mlt_options_init(&options, sizeof options));
  options.rank = rank;
  options.ranks = ranks;
  options.job = 7;
  options.datapath = "udp";
  options.operation_timeout_ns = LONG_WAIT;
  OK(mlt_create(&options, &context));
  CHECK(context != NULL && mlt_control_port(context) != 0);
  return context;
}

static mlt_peer address_of(uint16_t rank) {
  mlt_peer peer;
  memset(&peer, 0, sizeof peer);
  peer.size = sizeof peer;
  peer.rank = rank;
  peer.host = "127.0.0.1";
  peer.control_port = mlt_control_port(contexts[rank]);
  return peer;
}

static void* connect_rank_1(void* unused) {
  const mlt_peer peer = address_of(0);
  OK(mlt_connect(contexts[1], &peer, 1, LONG_WAIT));
  return unused;
}

static void open_pair(void) {
  pthread_t thread;
  mlt_peer peer;
  contexts[0] = create(0, 2);
  contexts[1] = create(1, 2);
  CHECK(pthread_create(&thread, NULL, connect_rank_1, NULL) == 0);
  peer = address_of(1);
  OK(mlt_connect(contexts[0], &peer, 1, LONG_WAIT));
  CHECK(pthread_join(thread, NULL) == 0);
}

static void close_pair(void) {
  mlt_destroy(contexts[0]);
  mlt_destroy(contexts[1]);
}

static mlt_send_options send_of(const void* data, size_t bytes, uint64_t tag) {
  mlt_send_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.data = data;
  options.bytes = bytes;
  options.tag = tag;
  options.to = 1;
  return options;
}

static mlt_receive_options receive_of(void* data, size_t bytes, uint64_t tag) {
  mlt_receive_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.data = data;
  options.bytes = bytes;
  options.tag = tag;
  options.from = 0;
  return options;
}

static mlt_collective_options collective_of(const void* input, size_t input_bytes, void* output, size_t output_bytes) {
  mlt_collective_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.input = input;
  options.input_bytes = input_bytes;
  options.output = output;
  options.output_bytes = output_bytes;
  options.element = MLT_INT32;
  return options;
}

static void finish(mlt_context* context, uint64_t operation) {
  mlt_completion done;
  OK(mlt_wait(context, operation, LONG_WAIT, &done, sizeof done));
  if (done.error != MLT_OK) printf("%s\n", done.text);
  CHECK(done.error == MLT_OK && done.operation == operation && done.text[0] == '\0' && done.owned == NULL);
  mlt_completion_release(&done);
}

static void send_and_receive__by_test_poll_and_wait(void) {
  static float data[COUNT], got[COUNT];
  uint64_t sent, received;
  mlt_completion done[3];
  size_t i, taken = 0;
  int up = 0, result;
  mlt_send_options send = send_of(data, sizeof data, 5);
  mlt_receive_options receive = receive_of(got, sizeof got, 5);
  struct timespec now, start;
  for (i = 0; i < COUNT; ++i) data[i] = (float)i;
  send.element = receive.element = MLT_FLOAT32;
  OK(mlt_peer_is_up(contexts[0], 1, &up));
  CHECK(up == 1);
  OK(mlt_post_receive(contexts[1], &receive, &received));
  CHECK(mlt_test(contexts[1], received, done, sizeof done[0]) == MLT_IN_PROGRESS);
  CHECK(mlt_wait(contexts[1], received, 1000, done, sizeof done[0]) == MLT_IN_PROGRESS);
  OK(mlt_poll(contexts[1], done, sizeof done[0], 3, 0, &taken));
  CHECK(taken == 0);
  OK(mlt_post_send(contexts[0], &send, &sent));
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    result = mlt_test(contexts[1], received, done, sizeof done[0]);
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec < 30);
  } while (result == MLT_IN_PROGRESS);
  CHECK(result == MLT_OK);
  CHECK(done[0].operation == received && done[0].error == MLT_OK && done[0].verb == MLT_RECEIVE);
  CHECK(done[0].total_bytes == sizeof data && done[0].missing_bytes == 0 && done[0].missing_count == 0);
  CHECK(done[0].peer == 0 && done[0].tag == 5 && done[0].failed_peer == -1);
  CHECK(done[0].status == MLT_STATUS_COMPLETE && done[0].elapsed_ns > 0);
  CHECK(memcmp(data, got, sizeof data) == 0);
  OK(mlt_poll(contexts[0], done, sizeof done[0], 3, LONG_WAIT, &taken));
  CHECK(taken == 1 && done[0].operation == sent && done[0].verb == MLT_SEND);
  FAILS(mlt_test(contexts[0], sent, done, sizeof done[0]), MLT_ERROR_UNKNOWN_OPERATION, "rank 0");
  FAILS(mlt_wait(contexts[0], sent, 0, done, sizeof done[0]), MLT_ERROR_UNKNOWN_OPERATION, "was never posted");
}

static void lists__are_posted_and_waited_for_together(void) {
  enum { LIST = 200 };
  static unsigned char data[LIST][8], got[LIST][8];
  static mlt_send_options sends[LIST];
  static mlt_receive_options receives[LIST];
  static mlt_completion done[LIST];
  uint64_t sent[LIST], received[LIST];
  size_t i;
  for (i = 0; i < LIST; ++i) {
    memset(data[i], (int)i, sizeof data[i]);
    sends[i] = send_of(data[i], sizeof data[i], 1000 + i);
    receives[i] = receive_of(got[i], sizeof got[i], 1000 + i);
  }
  OK(mlt_post_receives(contexts[1], receives, LIST, received));
  CHECK(mlt_wait_all(contexts[1], received, LIST, 1000, done, sizeof done[0]) == MLT_IN_PROGRESS);
  OK(mlt_post_sends(contexts[0], sends, LIST, sent));
  OK(mlt_wait_all(contexts[1], received, LIST, LONG_WAIT, done, sizeof done[0]));
  for (i = 0; i < LIST; ++i) {
    CHECK(done[i].operation == received[i] && done[i].error == MLT_OK && done[i].tag == 1000 + i);
    mlt_completion_release(&done[i]);
  }
  OK(mlt_wait_all(contexts[0], sent, LIST, LONG_WAIT, done, sizeof done[0]));
  CHECK(memcmp(data, got, sizeof data) == 0);
  FAILS(mlt_wait_all(contexts[0], sent, LIST, 0, done, sizeof done[0]), MLT_ERROR_UNKNOWN_OPERATION,
        "was never posted");

  /* One that is rejected: none is started. */
  sent[0] = 77;
  sends[LIST - 1].to = 9;
  FAILS(mlt_post_sends(contexts[0], sends, LIST, sent), MLT_ERROR_UNKNOWN_PEER, "number 200 of 200");
  CHECK(mlt_error_peer() == 9);
  sends[LIST - 1].to = 1;
  sends[3].element = 99;
  FAILS(mlt_post_sends(contexts[0], sends, LIST, sent), MLT_ERROR_CONFIG, "number 4 of 200");
  sends[3].element = MLT_UINT8;
  sends[3].size += 8;
  FAILS(mlt_post_sends(contexts[0], sends, LIST, sent), MLT_ERROR_CONFIG, "number 4 of 200");
  sends[3].size -= 8;
  sends[0].size = 3;
  FAILS(mlt_post_sends(contexts[0], sends, LIST, sent), MLT_ERROR_CONFIG, "sizeof");
  sends[0].size = sizeof sends[0];
  receives[1].loss_bound = 0.5;
  FAILS(mlt_post_receives(contexts[1], receives, LIST, received), MLT_ERROR_BUFFER, "number 2 of 200");
  FAILS(mlt_post_sends(NULL, sends, LIST, sent), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_post_sends(contexts[0], NULL, LIST, sent), MLT_ERROR_CONFIG, "options is NULL");
  FAILS(mlt_post_sends(contexts[0], sends, 0, sent), MLT_ERROR_CONFIG, "count is 0");
  FAILS(mlt_post_sends(contexts[0], sends, LIST, NULL), MLT_ERROR_CONFIG, "operations is NULL");
  FAILS(mlt_wait_all(contexts[0], NULL, 1, 0, done, sizeof done[0]), MLT_ERROR_CONFIG, "operations is NULL");
  FAILS(mlt_wait_all(contexts[0], sent, 0, 0, done, sizeof done[0]), MLT_ERROR_CONFIG, "count is 0");
  FAILS(mlt_wait_all(contexts[0], sent, 1, 0, NULL, sizeof done[0]), MLT_ERROR_CONFIG, "completion is NULL");
  CHECK(sent[0] == 77);
}

/* Posts the same collective on both ranks and waits for both. */
static void on_both(int (*post)(mlt_context*, const mlt_collective_options*, uint64_t*),
                    const mlt_collective_options* options) {
  uint64_t operation[2];
  OK(post(contexts[0], &options[0], &operation[0]));
  OK(post(contexts[1], &options[1], &operation[1]));
  finish(contexts[0], operation[0]);
  finish(contexts[1], operation[1]);
}

static void collectives__have_the_right_results(void) {
  int32_t in[2][2], out[2][2], gathered[2][4];
  const uint64_t to_0_first[2] = {8, 0}, to_1_first[2] = {0, 8}; /* all of rank 0 stays, all of rank 1 goes to itself */
  const uint16_t reversed[2] = {1, 0};
  mlt_collective_options options[2];
  int r;
  for (r = 0; r < 2; ++r) {
    in[r][0] = 10 * r + 1;
    in[r][1] = 10 * r + 2;
    memcpy(out[r], in[r], sizeof in[r]);
    options[r] = collective_of(NULL, 0, out[r], sizeof out[r]);
    options[r].reduction = MLT_SUM;
  }
  on_both(mlt_post_all_reduce, options);
  for (r = 0; r < 2; ++r) CHECK(out[r][0] == 12 && out[r][1] == 14);

  for (r = 0; r < 2; ++r) options[r].algorithm = MLT_ALGORITHM_HALVING;
  memcpy(out, in, sizeof in);
  on_both(mlt_post_all_reduce, options);
  for (r = 0; r < 2; ++r) CHECK(out[r][0] == 12 && out[r][1] == 14);

  for (r = 0; r < 2; ++r) options[r].reduction = MLT_MAX;
  memcpy(out, in, sizeof in);
  on_both(mlt_post_all_reduce, options);
  for (r = 0; r < 2; ++r) CHECK(out[r][0] == 11 && out[r][1] == 12);

  for (r = 0; r < 2; ++r) {
    options[r] = collective_of(NULL, 0, out[r], sizeof out[r]);
    options[r].root = 1;
    options[r].algorithm = MLT_ALGORITHM_CHAIN;
  }
  memcpy(out, in, sizeof in);
  on_both(mlt_post_broadcast, options);
  for (r = 0; r < 2; ++r) CHECK(out[r][0] == 11 && out[r][1] == 12);

  for (r = 0; r < 2; ++r) options[r] = collective_of(in[r], sizeof in[r], out[r], sizeof out[r]);
  on_both(mlt_post_all_to_all, options);
  CHECK(out[0][0] == 1 && out[0][1] == 11 && out[1][0] == 2 && out[1][1] == 12);

  options[0].send_bytes = options[0].receive_bytes = to_0_first;
  options[1].send_bytes = options[1].receive_bytes = to_1_first;
  on_both(mlt_post_all_to_all, options);
  CHECK(memcmp(out, in, sizeof in) == 0);

  for (r = 0; r < 2; ++r) {
    options[r] = collective_of(in[r], sizeof in[r], gathered[r], sizeof gathered[r]);
    options[r].ranks = reversed;
    options[r].rank_count = 2;
    options[r].stream = 3;
  }
  on_both(mlt_post_all_gather, options);
  for (r = 0; r < 2; ++r) CHECK(gathered[r][0] == 11 && gathered[r][1] == 12 && gathered[r][2] == 1);

  options[0] = collective_of(in[0], sizeof in[0], NULL, 0);
  options[1] = collective_of(in[1], sizeof in[1], gathered[1], sizeof gathered[1]);
  options[0].root = options[1].root = 1;
  memset(gathered, 0, sizeof gathered);
  on_both(mlt_post_gather, options);
  CHECK(gathered[1][0] == 1 && gathered[1][1] == 2 && gathered[1][2] == 11 && gathered[1][3] == 12);

  for (r = 0; r < 2; ++r) {
    options[r] = collective_of(in[r], sizeof in[r], out[r], sizeof out[r][0]);
    options[r].reduction = MLT_SUM;
  }
  on_both(mlt_post_reduce_scatter, options);
  CHECK(out[0][0] == 12 && out[1][0] == 14);

  options[0] = collective_of(in[0], sizeof in[0], NULL, 0);
  options[1] = collective_of(in[1], sizeof in[1], out[1], sizeof out[1]);
  for (r = 0; r < 2; ++r) {
    options[r].root = 1;
    options[r].reduction = MLT_PRODUCT;
  }
  on_both(mlt_post_reduce, options);
  CHECK(out[1][0] == 11 && out[1][1] == 24);
  for (r = 0; r < 2; ++r) options[r].algorithm = MLT_ALGORITHM_CHAIN;
  memset(out, 0, sizeof out);
  on_both(mlt_post_reduce, options);
  CHECK(out[1][0] == 11 && out[1][1] == 24);

  options[0] = collective_of(NULL, 0, out[0], sizeof out[0][0]);
  options[1] = collective_of(in[1], sizeof in[1], out[1], sizeof out[1][0]);
  options[0].root = options[1].root = 1;
  on_both(mlt_post_scatter, options);
  CHECK(out[0][0] == 11 && out[1][0] == 12);

  memcpy(out, in, sizeof in);
  for (r = 0; r < 2; ++r) {
    options[r] = collective_of(NULL, 0, out[r], sizeof out[r]);
    options[r].root = 1;
  }
  on_both(mlt_post_broadcast, options);
  CHECK(out[0][0] == 11 && out[0][1] == 12);

  for (r = 0; r < 2; ++r) options[r] = collective_of(NULL, 0, NULL, 0);
  on_both(mlt_post_barrier, options);
}

/* Loopback loses nothing: what the results may miss is all here. */
static void collectives__with_lossy_results_and_with_a_nan(void) {
  static float values[2][40000];
  mlt_collective_options options[2];
  uint64_t operation[2];
  mlt_completion done;
  int r, i;
  for (r = 0; r < 2; ++r) {
    for (i = 0; i < 40000; ++i) values[r][i] = (float)(r + 1);
    options[r] = collective_of(NULL, 0, values[r], sizeof values[r]);
    options[r].element = MLT_FLOAT32;
    options[r].reduction = MLT_MEAN;
    options[r].loss_bound = 0.1;
    options[r].lossy_results = 1;
    options[r].check_finite = 1;
  }
  on_both(mlt_post_all_reduce, options);
  for (r = 0; r < 2; ++r) CHECK(values[r][0] == 1.5F && values[r][39999] == 1.5F);

  values[1][7] = NAN;
  for (r = 0; r < 2; ++r) OK(mlt_post_all_reduce(contexts[r], &options[r], &operation[r]));
  for (r = 0; r < 2; ++r) {
    OK(mlt_wait(contexts[r], operation[r], LONG_WAIT, &done, sizeof done));
    CHECK(done.error == MLT_ERROR_CANCELLED && done.failed_peer == 1);
    CHECK(strstr(done.text, "element 7") != NULL);
    mlt_completion_release(&done);
  }
}

static void collectives__of_a_list_of_tensors(void) {
  int32_t one[2][1], two[2][2];
  mlt_tensor tensors[2][3];
  mlt_collective_options options[2];
  int r;
  for (r = 0; r < 2; ++r) {
    one[r][0] = 1 + r;
    two[r][0] = 10 + r;
    two[r][1] = 20 + r;
    tensors[r][0].data = one[r];
    tensors[r][0].bytes = sizeof one[r];
    tensors[r][1].data = NULL;
    tensors[r][1].bytes = 0;
    tensors[r][2].data = two[r];
    tensors[r][2].bytes = sizeof two[r];
    options[r] = collective_of(NULL, 0, NULL, 0);
    options[r].reduction = MLT_SUM;
    options[r].tensors = tensors[r];
    options[r].tensor_count = 3;
  }
  on_both(mlt_post_all_reduce, options);
  for (r = 0; r < 2; ++r) CHECK(one[r][0] == 3 && two[r][0] == 21 && two[r][1] == 41);

  one[1][0] = two[1][1] = 7;
  for (r = 0; r < 2; ++r) {
    options[r].reduction = 0;
    options[r].root = 1;
  }
  on_both(mlt_post_broadcast, options);
  CHECK(one[0][0] == 7 && two[0][0] == 21 && two[0][1] == 7);
}

static void completion__of_a_failure_names_rank_tensor_and_cause(void) {
  char small[4], large[8] = "1234567";
  uint64_t sent, received;
  mlt_completion done;
  const mlt_send_options send = send_of(large, sizeof large, 11);
  const mlt_receive_options receive = receive_of(small, sizeof small, 11);
  OK(mlt_post_receive(contexts[1], &receive, &received));
  OK(mlt_post_send(contexts[0], &send, &sent));
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_ERROR_SIZE_MISMATCH && done.status == MLT_STATUS_SIZE_MISMATCH);
  CHECK(strstr(done.text, "rank 1") != NULL && strstr(done.text, "tag 11") != NULL);
  CHECK(done.owned != NULL);
  mlt_completion_release(&done);
  CHECK(done.owned == NULL && done.text[0] == '\0');
  mlt_completion_release(&done); /* twice is harmless */
  OK(mlt_wait(contexts[0], sent, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_ERROR_SIZE_MISMATCH && strstr(done.text, "rank 0") != NULL);
  mlt_completion_release(&done);

  OK(mlt_post_receive(contexts[1], &receive, &received));
  OK(mlt_cancel(contexts[1], received));
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_ERROR_CANCELLED && done.text[0] != '\0');
  mlt_completion_release(&done);
}

/* An eager receive with a bound of one half ends with half of the tensor missing. */
static void completion__of_a_lossy_receive_has_its_missing_ranges(void) {
  static float data[COUNT], got[COUNT];
  uint64_t sent, received, missing = 0, end = 0;
  mlt_completion done;
  size_t i, at;
  mlt_send_options send = send_of(data, sizeof data, 13);
  mlt_receive_options receive = receive_of(got, sizeof got, 13);
  for (i = 0; i < COUNT; ++i) data[i] = got[i] = (float)(i + 1);
  send.element = receive.element = MLT_FLOAT32;
  receive.loss_bound = 0.5;
  receive.eager = 1;
  OK(mlt_post_receive(contexts[1], &receive, &received));
  OK(mlt_post_send(contexts[0], &send, &sent));
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_OK && done.status == MLT_STATUS_WITHIN_BOUND && done.text[0] == '\0');
  CHECK(done.missing_count > 0 && done.missing != NULL && done.owned != NULL);
  CHECK(done.missing_bytes > 0 && done.missing_bytes <= done.allowed_missing_bytes);
  CHECK(done.allowed_missing_bytes == sizeof data / 2);
  for (i = 0; i < done.missing_count; ++i) {
    const mlt_range range = done.missing[i];
    CHECK(i == 0 || range.offset_bytes > end); /* ascending, and neighbours are one range */
    end = range.offset_bytes + range.length_bytes;
    CHECK(range.length_bytes > 0 && end <= sizeof data);
    for (at = range.offset_bytes / sizeof got[0]; at < end / sizeof got[0]; ++at) CHECK(got[at] == 0);
    missing += range.length_bytes;
  }
  CHECK(missing == done.missing_bytes);
  for (i = 0, at = 0; at < COUNT; ++at) {
    if (got[at] == 0) ++i;
  }
  CHECK(i * sizeof got[0] == missing); /* all others have arrived */
  mlt_completion_release(&done);
  CHECK(done.missing == NULL && done.missing_count == 0);
  OK(mlt_wait(contexts[0], sent, LONG_WAIT, &done, sizeof done));
  CHECK(done.missing_bytes == missing && done.missing_count == 0);
  mlt_completion_release(&done);

  /* Nothing is sent: at its deadline all of it is missing, and kept as it was. */
  for (i = 0; i < COUNT; ++i) got[i] = 7;
  receive.tag = 14;
  receive.eager = 0;
  receive.keep_missing = 1;
  receive.deadline_ns = SECOND / 100;
  OK(mlt_post_receive(contexts[1], &receive, &received));
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_OK && done.status == MLT_STATUS_DEADLINE && done.missing_bytes == sizeof data);
  CHECK(done.missing_count == 1 && done.missing[0].offset_bytes == 0 && done.missing[0].length_bytes == sizeof data);
  CHECK(got[0] == 7 && got[COUNT - 1] == 7);
  mlt_completion_release(&done);
}

static void receive__of_up_to_a_size_tells_the_true_one(void) {
  static const size_t sizes[] = {0, 1, 1000, 5000};
  char data[5001], got[5000];
  uint64_t sent, received;
  mlt_completion done;
  size_t i;
  mlt_send_options send;
  mlt_receive_options receive = receive_of(got, sizeof got, 15);
  memset(data, 'a', sizeof data);
  receive.up_to = 2;
  FAILS(mlt_post_receive(contexts[1], &receive, &received), MLT_ERROR_CONFIG, "up_to");
  receive.up_to = 1;
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    memset(got, 'z', sizeof got);
    send = send_of(data, sizes[i], 15);
    OK(mlt_post_receive(contexts[1], &receive, &received));
    OK(mlt_post_send(contexts[0], &send, &sent));
    OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
    CHECK(done.error == MLT_OK && done.status == MLT_STATUS_COMPLETE && done.total_bytes == sizes[i]);
    CHECK(memcmp(got, data, sizes[i]) == 0 && (sizes[i] == sizeof got || got[sizes[i]] == 'z'));
    mlt_completion_release(&done);
    finish(contexts[0], sent);
  }
  send = send_of(data, sizeof data, 15);
  OK(mlt_post_receive(contexts[1], &receive, &received));
  OK(mlt_post_send(contexts[0], &send, &sent));
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_ERROR_SIZE_MISMATCH);
  CHECK(strstr(done.text, "up to 5000 bytes") != NULL && strstr(done.text, "sends 5001 bytes") != NULL);
  mlt_completion_release(&done);
  OK(mlt_wait(contexts[0], sent, LONG_WAIT, &done, sizeof done));
  CHECK(done.error == MLT_ERROR_SIZE_MISMATCH);
  CHECK(strstr(done.text, "receives 5000 bytes") != NULL && strstr(done.text, "(5001 bytes") != NULL);
  mlt_completion_release(&done);
}

static void structures__of_other_versions(void) {
  struct {
    mlt_send_options known;
    uint64_t later;
  } send;
  struct {
    mlt_completion known;
    uint64_t later;
  } done[2];
  char data[4] = "abc", got[4];
  uint64_t sent, received;
  size_t taken;
  const mlt_receive_options receive = receive_of(got, sizeof got, 21);
  memset(&send, 0, sizeof send);
  send.known = send_of(data, sizeof data, 21);
  send.known.size = sizeof send;
  send.later = 1;
  FAILS(mlt_post_send(contexts[0], &send.known, &sent), MLT_ERROR_CONFIG, "too old");
  send.later = 0;
  OK(mlt_post_send(contexts[0], &send.known, &sent));
  OK(mlt_post_receive(contexts[1], &receive, &received));
  memset(done, 255, sizeof done);
  OK(mlt_wait(contexts[1], received, LONG_WAIT, &done[0].known, sizeof done[0]));
  CHECK(done[0].known.operation == received && done[0].later == 0 && done[1].later != 0);
  OK(mlt_poll(contexts[0], &done[0].known, sizeof done[0], 2, LONG_WAIT, &taken));
  CHECK(taken == 1 && done[0].known.operation == sent);
  send.known.size = sizeof send.known - 1;
  FAILS(mlt_post_send(contexts[0], &send.known, &sent), MLT_ERROR_CONFIG, "sizeof");
  send.known.size = 0;
  FAILS(mlt_post_send(contexts[0], &send.known, &sent), MLT_ERROR_CONFIG, "sizeof");
}

static void bad_posts__are_rejected_before_anything_starts(void) {
  float data[4] = {0, 0, 0, 0};
  uint8_t tags[2] = {0, 0};
  uint64_t operation = 77;
  uint32_t segments = 0;
  char text[8];
  int up;
  size_t taken;
  mlt_completion done;
  mlt_send_options send = send_of(data, sizeof data, 31);
  mlt_receive_options receive = receive_of(data, sizeof data, 31);
  mlt_collective_options group = collective_of(data, sizeof data, data, sizeof data);
  uint16_t ranks[2] = {0, 5};
  mlt_tensor tensor = {data, sizeof data};

  FAILS(mlt_post_send(NULL, &send, &operation), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_post_send(contexts[0], NULL, &operation), MLT_ERROR_CONFIG, "options is NULL");
  FAILS(mlt_post_send(contexts[0], &send, NULL), MLT_ERROR_CONFIG, "operation is NULL");
  send.to = 2;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_UNKNOWN_PEER, "ranks 0 to 1");
  CHECK(mlt_error_peer() == 2);
  send.to = 0;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_UNKNOWN_PEER, "itself");
  send = send_of(NULL, 4, 31);
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "data is NULL");
  send = send_of(data, sizeof data, UINT64_C(1) << 63);
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "tag");
  send = send_of(data, sizeof data, 31);
  send.element = 13;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "element is 13");
  send.element = MLT_FLOAT32;
  send.bytes = 3;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_BUFFER, "rejected");
  send.bytes = sizeof data;
  send.layer = 1;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "layer");
  send.layer = 0;
  send.timeout_ns = -1;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "timeout_ns");
  send.timeout_ns = 0;
  send.by_magnitude = 2;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "by_magnitude");
  send.by_magnitude = 0;
  send.segment_priorities = tags;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "segment_priority_count");
  send.segment_priority_count = 2;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "2 for 1");
  OK(mlt_segment_count(contexts[0], 1, sizeof data, &segments));
  CHECK(segments == 1);
  send = send_of(data, sizeof data, 31);
  send.reserved[1] = 1;
  FAILS(mlt_post_send(contexts[0], &send, &operation), MLT_ERROR_CONFIG, "reserved");

  receive.loss_bound = 0.5;
  FAILS(mlt_post_receive(contexts[1], &receive, &operation), MLT_ERROR_BUFFER, "rejected");
  receive.element = MLT_FLOAT32;
  receive.loss_bound = 1;
  FAILS(mlt_post_receive(contexts[1], &receive, &operation), MLT_ERROR_CONFIG, "loss bound");
  receive.loss_bound = 0;
  receive.deadline_ns = -1;
  FAILS(mlt_post_receive(contexts[1], &receive, &operation), MLT_ERROR_CONFIG, "negative");
  receive.deadline_ns = 0;
  receive.eager = 7;
  FAILS(mlt_post_receive(contexts[1], &receive, &operation), MLT_ERROR_CONFIG, "eager");
  receive.eager = 0;
  receive.data = NULL;
  FAILS(mlt_post_receive(contexts[1], &receive, &operation), MLT_ERROR_CONFIG, "data is NULL");

  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "input is set");
  FAILS(mlt_post_barrier(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "input is set");
  group = collective_of(NULL, 0, data, sizeof data);
  group.root = 1;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "root is set");
  group.root = 0;
  group.reduction = 8;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "reduction is 8");
  FAILS(mlt_post_broadcast(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "reduction is set");
  group.reduction = MLT_SUM;
  group.algorithm = MLT_ALGORITHM_TWO_LEVEL;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "two or more hosts");
  group.algorithm = 7;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "algorithm is 7");
  FAILS(mlt_post_broadcast(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "algorithm is 7");
  FAILS(mlt_post_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "algorithm is 7");
  FAILS(mlt_post_scatter(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "algorithm is set");
  group.algorithm = MLT_ALGORITHM_AUTOMATIC;
  group.lossy_results = 1;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "must not be lost");
  FAILS(mlt_post_broadcast(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "lossy_results is set");
  group.lossy_results = 2;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "lossy_results must be 0 or 1");
  group.lossy_results = 0;
  group.check_finite = 2;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "check_finite must be 0 or 1");
  group.check_finite = 0;
  group.algorithm = MLT_ALGORITHM_AUTOMATIC;
  group.tensors = &tensor;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "tensor_count");
  group.tensor_count = 1;
  FAILS(mlt_post_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "tensors is set");
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "both one tensor and a list");
  group.output = NULL;
  group.output_bytes = 0;
  tensor.bytes = 3;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "tensor 0 of the list has 3 bytes");
  tensor.data = NULL;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "the data of a tensor is NULL");
  group = collective_of(NULL, 0, data, sizeof data);
  group.reduction = MLT_SUM;
  group.ranks = ranks;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_CONFIG, "rank_count");
  group.rank_count = 2;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_UNKNOWN_PEER, "0 to 1");
  ranks[1] = 0;
  FAILS(mlt_post_all_reduce(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "rejected");
  group = collective_of(data, sizeof data, data, 4);
  FAILS(mlt_post_all_gather(contexts[0], &group, &operation), MLT_ERROR_BUFFER, "rejected");
  CHECK(operation == 77);

  FAILS(mlt_poll(contexts[0], NULL, sizeof done, 1, 0, &taken), MLT_ERROR_CONFIG, "completion is NULL");
  FAILS(mlt_poll(contexts[0], &done, 4, 1, 0, &taken), MLT_ERROR_CONFIG, "completion_bytes");
  FAILS(mlt_poll(contexts[0], &done, sizeof done + 1, 1, 0, &taken), MLT_ERROR_CONFIG, "completion_bytes");
  FAILS(mlt_poll(contexts[0], &done, sizeof done, 0, 0, &taken), MLT_ERROR_CONFIG, "capacity");
  FAILS(mlt_poll(contexts[0], &done, sizeof done, 1, 0, NULL), MLT_ERROR_CONFIG, "taken is NULL");
  FAILS(mlt_test(NULL, 1, &done, sizeof done), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_test(contexts[0], 1, NULL, sizeof done), MLT_ERROR_CONFIG, "completion is NULL");
  FAILS(mlt_wait(contexts[0], 0, 0, &done, sizeof done), MLT_ERROR_UNKNOWN_OPERATION, "operation 0");
  FAILS(mlt_cancel(NULL, 1), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_peer_is_up(contexts[0], 0, &up), MLT_ERROR_UNKNOWN_PEER, "rank 0");
  FAILS(mlt_peer_is_up(contexts[0], 1, NULL), MLT_ERROR_CONFIG, "up is NULL");
  FAILS(mlt_peer_failure(contexts[0], 2, text, sizeof text), MLT_ERROR_UNKNOWN_PEER, "rank 2");
  FAILS(mlt_peer_failure(contexts[0], 1, text, 0), MLT_ERROR_CONFIG, "capacity");
  FAILS(mlt_segment_count(contexts[0], 1, UINT64_C(1) << 32, &segments), MLT_ERROR_CONFIG, "4 GiB");
  FAILS(mlt_close(NULL, NULL), MLT_ERROR_CONFIG, "context is NULL");
  mlt_completion_release(NULL);
  mlt_destroy(NULL);
  CHECK(mlt_control_port(NULL) == 0);
}

static void bad_contexts__are_rejected(void) {
  mlt_options options;
  mlt_context *context = NULL, *other = NULL;
  mlt_peer peers[2];
  const uint16_t hosts[3] = {0, 0, 1};
  FAILS(mlt_options_init(NULL, sizeof options), MLT_ERROR_CONFIG, "NULL");
  FAILS(mlt_options_init(&options, 8), MLT_ERROR_CONFIG, "options_bytes");
  OK(mlt_options_init(&options, sizeof options));
  FAILS(mlt_create(&options, NULL), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_create(NULL, &context), MLT_ERROR_CONFIG, "options is NULL");
  options.rank = 1;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "rank");
  OK(mlt_options_init(&options, sizeof options));
  options.secret_bytes = 16;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "secret is NULL");
  options.secret = "short";
  options.secret_bytes = 5;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "secret");
  OK(mlt_options_init(&options, sizeof options));
  options.insecure = 2;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "insecure");
  OK(mlt_options_init(&options, sizeof options));
  options.shares_by_rate = 2;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "shares_by_rate");
  OK(mlt_options_init(&options, sizeof options));
  options.checksums = 2;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "checksums");
  OK(mlt_options_init(&options, sizeof options));
  options.erasure_correction = 2;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "erasure_correction");
  OK(mlt_options_init(&options, sizeof options));
  options.connects_on_use = 2;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "connects_on_use");
  OK(mlt_options_init(&options, sizeof options));
  options.max_operations = 0;
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "max_operations");
  OK(mlt_options_init(&options, sizeof options));
  options.datapath = "pigeon";
  FAILS(mlt_create(&options, &context), MLT_ERROR_CONFIG, "pigeon");
  CHECK(context == NULL);
  OK(mlt_options_init(&options, sizeof options));
  OK(mlt_create(&options, &other));
  options.control_port = mlt_control_port(other);
  CHECK(mlt_create(&options, &context) == MLT_ERROR_PORT_IN_USE);
  mlt_destroy(other);

  context = create(0, 3);
  FAILS(mlt_set_hosts(context, hosts, 2), MLT_ERROR_CONFIG, "hosts of 2 ranks; the job has 3");
  FAILS(mlt_set_hosts(context, NULL, 3), MLT_ERROR_CONFIG, "hosts is NULL");
  OK(mlt_set_hosts(context, hosts, 3));
  FAILS(mlt_set_hosts(context, hosts, 3), MLT_ERROR_CONFIG, "called before");
  memset(peers, 0, sizeof peers);
  peers[0].size = peers[1].size = sizeof peers[0];
  peers[0].host = peers[1].host = "127.0.0.1";
  peers[0].control_port = peers[1].control_port = 9;
  peers[0].rank = 1;
  peers[1].rank = 1;
  FAILS(mlt_connect(context, peers, 1, SECOND), MLT_ERROR_CONFIG, "every other rank once");
  FAILS(mlt_connect(context, NULL, 2, SECOND), MLT_ERROR_CONFIG, "NULL");
  FAILS(mlt_connect(context, peers, 2, SECOND), MLT_ERROR_CONFIG, "given twice");
  peers[1].rank = 0;
  FAILS(mlt_connect(context, peers, 2, SECOND), MLT_ERROR_CONFIG, "another rank of the job");
  peers[1].rank = 2;
  peers[1].host = NULL;
  FAILS(mlt_connect(context, peers, 2, SECOND), MLT_ERROR_CONFIG, "without a host");
  peers[1].host = "127.0.0.1";
  peers[1].control_port = 0;
  FAILS(mlt_connect(context, peers, 2, SECOND), MLT_ERROR_CONFIG, "without a control_port");
  peers[1].control_port = 9;
  CHECK(mlt_connect(context, peers, 2, SECOND / 100) == MLT_ERROR_RENDEZVOUS);
  CHECK(mlt_connect(context, peers, 2, SECOND) == MLT_ERROR_CONFIG); /* only once */
  mlt_destroy(context);
}

/* Polls until the result is not MLT_IN_PROGRESS. */
static int until_connected(mlt_context* context) {
  struct timespec now, start;
  int result;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while ((result = mlt_connect_test(context)) == MLT_IN_PROGRESS) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec < 30);
  }
  return result;
}

static void until_up(mlt_context* context, uint16_t rank) {
  struct timespec now, start;
  int up = 0;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (up == 0) {
    OK(mlt_peer_is_up(context, rank, &up));
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec < 30);
  }
}

/* One thread connects three ranks, whose addresses become known one after another. */
static void connect_start__lets_peers_follow(void) {
  mlt_context* all[3];
  mlt_peer peers[3], unreachable;
  char data[4] = "abc", got[4];
  uint64_t sent, received;
  int i, up;
  mlt_send_options send = send_of(data, sizeof data, 1);
  mlt_receive_options receive = receive_of(got, sizeof got, 1);
  for (i = 0; i < 3; ++i) {
    all[i] = create((uint16_t)i, 4);
    memset(&peers[i], 0, sizeof peers[i]);
    peers[i].size = sizeof peers[i];
    peers[i].rank = (uint16_t)i;
    peers[i].host = "127.0.0.1";
    peers[i].control_port = mlt_control_port(all[i]);
  }
  CHECK(mlt_post_send(all[0], &send, &sent) == MLT_ERROR_PEER_FAILED);
  OK(mlt_connect_start(all[0], NULL, 0, LONG_WAIT));
  OK(mlt_connect_test(all[0])); /* of none */
  OK(mlt_peer_is_up(all[0], 1, &up));
  CHECK(up == 0);
  OK(mlt_connect_start(all[1], &peers[0], 1, LONG_WAIT));
  OK(until_connected(all[1]));
  until_up(all[0], 1); /* without having been named */
  OK(mlt_connect_start(all[0], &peers[1], 1, LONG_WAIT));
  OK(until_connected(all[0]));
  OK(mlt_post_receive(all[1], &receive, &received));
  OK(mlt_post_send(all[0], &send, &sent));
  finish(all[1], received);
  finish(all[0], sent);

  OK(mlt_connect_start(all[0], &peers[2], 1, LONG_WAIT));
  CHECK(mlt_connect_test(all[0]) == MLT_IN_PROGRESS); /* rank 2 has no address to connect to yet */
  OK(mlt_connect_start(all[2], peers, 2, LONG_WAIT));
  OK(until_connected(all[2]));
  OK(until_connected(all[0]));
  until_up(all[1], 2);
  send.to = 2;
  OK(mlt_post_receive(all[2], &receive, &received));
  OK(mlt_post_send(all[0], &send, &sent));
  finish(all[2], received);
  finish(all[0], sent);

  FAILS(mlt_connect_start(all[2], peers, 1, LONG_WAIT), MLT_ERROR_CONFIG, "rank 0 before");
  FAILS(mlt_connect_start(all[2], &peers[2], 1, LONG_WAIT), MLT_ERROR_CONFIG, "another rank of the job");
  FAILS(mlt_connect_start(all[2], NULL, 1, LONG_WAIT), MLT_ERROR_CONFIG, "NULL");
  FAILS(mlt_connect_start(NULL, NULL, 0, 0), MLT_ERROR_CONFIG, "context is NULL");
  FAILS(mlt_connect_test(NULL), MLT_ERROR_CONFIG, "context is NULL");
  CHECK(mlt_connect(all[2], peers, 3, LONG_WAIT) == MLT_ERROR_CONFIG);

  /* Rank 3 never comes: the error names it, and the others continue. */
  unreachable = peers[0];
  unreachable.rank = 3;
  OK(mlt_connect_start(all[0], &unreachable, 1, SECOND / 100));
  CHECK(until_connected(all[0]) == MLT_ERROR_RENDEZVOUS);
  CHECK(mlt_error_peer() == 3 && strstr(mlt_error_text(), "rank 3") != NULL);
  OK(mlt_post_receive(all[2], &receive, &received));
  OK(mlt_post_send(all[0], &send, &sent));
  finish(all[2], received);
  finish(all[0], sent);
  OK(mlt_close(all[2], NULL));
  FAILS(mlt_connect_test(all[2]), MLT_ERROR_CLOSED, "closed");
  FAILS(mlt_connect_start(all[2], &unreachable, 1, 0), MLT_ERROR_CLOSED, "closed");
  for (i = 0; i < 3; ++i) mlt_destroy(all[i]);
}

static void close__ends_what_is_in_progress_and_is_known_to_the_peer(void) {
  char data[4];
  uint64_t receives[20], operation;
  mlt_completion done[20];
  char text[256];
  size_t taken = 0, i;
  mlt_receive_options receive = receive_of(data, sizeof data, 0);
  for (i = 0; i < 20; ++i) {
    receive.tag = 40 + i;
    OK(mlt_post_receive(contexts[1], &receive, &receives[i]));
  }
  OK(mlt_close(contexts[0], "the optimizer diverged"));
  while (taken < 20) {
    size_t count = 0;
    OK(mlt_poll(contexts[1], done + taken, sizeof done[0], 20 - taken, LONG_WAIT, &count));
    CHECK(count > 0);
    taken += count;
  }
  for (i = 0; i < 20; ++i) {
    CHECK(done[i].error == MLT_ERROR_PEER_FAILED && done[i].failed_peer == 0);
    CHECK(strstr(done[i].text, "the optimizer diverged") != NULL);
    mlt_completion_release(&done[i]);
  }
  OK(mlt_peer_failure(contexts[1], 0, text, sizeof text));
  CHECK(strstr(text, "diverged") != NULL);
  OK(mlt_peer_failure(contexts[1], 0, text, 4));
  CHECK(strlen(text) == 3);
  CHECK(mlt_post_receive(contexts[1], &receive, &operation) == MLT_ERROR_PEER_FAILED);
  OK(mlt_close(contexts[0], NULL));
  OK(mlt_close(contexts[1], NULL));
  CHECK(mlt_post_receive(contexts[1], &receive, &operation) == MLT_ERROR_CLOSED);
  OK(mlt_poll(contexts[1], done, sizeof done[0], 1, -1, &taken));
  CHECK(taken == 0);
}

static void names__of_codes(void) {
  CHECK(strcmp(mlt_error_name(MLT_ERROR_CONFIG), "MLT_ERROR_CONFIG") == 0);
  CHECK(strcmp(mlt_error_name(MLT_IN_PROGRESS), "MLT_IN_PROGRESS") == 0);
  CHECK(strcmp(mlt_error_name(99), "unknown") == 0);
  CHECK(mlt_protocol_version() > 0);
}

static double seconds_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Nanoseconds of one test of an operation in progress: test_c --speed. On a busy machine only those of CPU count. */
static int speed(void) {
  const int rounds = 2000000;
  char data[4];
  uint64_t operation;
  mlt_completion done;
  double start, cpu_start;
  int i;
  const mlt_receive_options receive = receive_of(data, sizeof data, 1);
  open_pair();
  OK(mlt_post_receive(contexts[1], &receive, &operation));
  start = seconds_of(CLOCK_MONOTONIC);
  cpu_start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  for (i = 0; i < rounds; ++i) CHECK(mlt_test(contexts[1], operation, &done, sizeof done) == MLT_IN_PROGRESS);
  printf("%.0f ns per test, %.0f ns of CPU\n", (seconds_of(CLOCK_MONOTONIC) - start) * 1e9 / rounds,
         (seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_start) * 1e9 / rounds);
  close_pair();
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "--speed") == 0) return speed();
  names__of_codes();
  bad_contexts__are_rejected();
  connect_start__lets_peers_follow();
  open_pair();
  send_and_receive__by_test_poll_and_wait();
  lists__are_posted_and_waited_for_together();
  collectives__have_the_right_results();
  collectives__with_lossy_results_and_with_a_nan();
  collectives__of_a_list_of_tensors();
  completion__of_a_failure_names_rank_tensor_and_cause();
  completion__of_a_lossy_receive_has_its_missing_ranges();
  receive__of_up_to_a_size_tells_the_true_one();
  structures__of_other_versions();
  bad_posts__are_rejected_before_anything_starts();
  close__ends_what_is_in_progress_and_is_known_to_the_peer();
  close_pair();
  return 0;
}
