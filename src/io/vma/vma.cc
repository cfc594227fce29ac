#include "io/vma/vma.h"

#include <cerrno>

namespace mlt::io {

namespace {

Vma ask() {
  Vma vma;
  const VmaInterface* table = nullptr;
  socklen_t size = sizeof table;
  const int before = errno;
  // The documented method: no socket has the number -1, so the kernel rejects this call and libvma does not.
  if (::getsockopt(-1, SOL_SOCKET, kVmaGetInterface, &table, &size) == 0 && table != nullptr) {
    vma.present = true;
    if (table->receive_zero_copy != nullptr && table->free_packets != nullptr) vma.zero_copy = table;
  }
  errno = before;
  return vma;
}

}  // namespace

const Vma& find_vma() {
  static const Vma vma = ask();
  return vma;
}

}  // namespace mlt::io
