// The memory that operations under way borrow from Python. An entry lives from the post to the completion's delivery.
//
// Used with the GIL held, so it needs no lock; the engine's thread never sees it, and so never drops a tensor.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/tensor_view.h"
#include "mlt.h"

namespace mlt::bindings {

struct Pin {
  std::vector<TensorView> views;  // the first is the one that errors name
};

class PinTable {
 public:
  // A post may run without the GIL, so another thread can be handed the completion before the poster gets here.
  void add(OperationId operation, Pin pin) {
    if (delivered_first_.erase(operation) == 0) pins_.emplace(operation, std::move(pin));
  }

  // Hands the pin over: dropping it may run Python code, which must find the table in order.
  Pin take(OperationId operation) {
    const auto found = pins_.find(operation);
    if (found == pins_.end()) {
      if (!closed_) delivered_first_.insert(operation);
      return {};
    }
    Pin pin = std::move(found->second);
    pins_.erase(found);
    return pin;
  }

  // After the engine was closed: nothing is under way any more.
  void close() {
    closed_ = true;
    delivered_first_.clear();
    const std::unordered_map<OperationId, Pin> dropped = std::exchange(pins_, {});
  }

  std::size_t size() const { return pins_.size(); }

 private:
  std::unordered_map<OperationId, Pin> pins_;
  std::unordered_set<OperationId> delivered_first_;
  bool closed_ = false;
};

}  // namespace mlt::bindings
