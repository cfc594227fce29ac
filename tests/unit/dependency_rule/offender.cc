// Breaks the dependency rule in every way that check_symbols.py looks for, so that a test can see it find them.
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <vector>

namespace offender {

class Endpoint {
 public:
  void post_send();
  void post_recv();
  void on_datagram();
  void on_control();
  void on_timeout();
  void poll_transmit();
  void poll_control();
  void poll_completion();
  void next_timeout();

 private:
  void grow();
  std::vector<int> numbers_;
};

void Endpoint::grow() { numbers_.push_back(1); }
void Endpoint::post_send() {}
void Endpoint::post_recv() {}
void Endpoint::on_datagram() { numbers_.push_back(::socket(AF_INET, SOCK_DGRAM, 0)); }
void Endpoint::on_control() { std::this_thread::sleep_for(std::chrono::microseconds(1)); }
void Endpoint::on_timeout() { grow(); }  // not at once, but one call further
void Endpoint::poll_transmit() {
  std::thread([] {}).join();
}
void Endpoint::poll_control() {}
void Endpoint::poll_completion() {}
void Endpoint::next_timeout() {
  numbers_.push_back(static_cast<int>(std::chrono::steady_clock::now().time_since_epoch().count()));
}

}  // namespace offender
