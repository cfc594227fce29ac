// Lets user-mode-linux 6.1 run on processors whose saved registers outgrow its buffer (AMX: 11 KB instead of 2.7 KB).
//
// It reads a truncated register set of its processes, which the host allows, and writes it back truncated, which the
// host refuses, so that its first process dies. Preloaded into linux.uml, this writes back the host's own full set with
// the known part replaced. What is beyond that part is AMX tiles, which nothing in the tests uses.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

typedef long ptrace_function(int request, pid_t pid, void* address, void* data);

long ptrace(enum __ptrace_request request, ...) {
  static ptrace_function* real;
  if (!real) real = (ptrace_function*)dlsym(RTLD_NEXT, "ptrace");
  va_list arguments;
  va_start(arguments, request);
  pid_t pid = va_arg(arguments, pid_t);
  void* address = va_arg(arguments, void*);
  void* data = va_arg(arguments, void*);
  va_end(arguments);

  if (request != PTRACE_SETREGSET || (unsigned long)address != NT_X86_XSTATE) return real(request, pid, address, data);
  static char full[1 << 16];
  const struct iovec* known = data;
  struct iovec whole = {full, sizeof full};
  if (real(PTRACE_GETREGSET, pid, address, &whole) == 0 && known->iov_len < whole.iov_len) {
    memcpy(full, known->iov_base, known->iov_len);
    return real(request, pid, address, &whole);
  }
  return real(request, pid, address, data);
}
