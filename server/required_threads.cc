// Ends the process that cannot make a thread, in every program that this is
// linked into.
//
// gRPC 1.51 goes on without a thread that could not be made, but has counted
// it: what its executor queues for it is never done, so that some calls are
// never answered again, while all others and the health check are. A momentary
// lack of memory or of process ids is enough. A process that ended is started
// anew, and its callers ask again.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace {

// There may be no memory.
[[noreturn]] void End() {
  constexpr std::string_view kWhy =
      "{\"severity\":\"ERROR\",\"msg\":\"no thread could be made: the "
      "process ends, to be started anew; it needs more memory or a higher "
      "limit of threads\"}\n";
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, kWhy.data(), kWhy.size());
  std::abort();
}

}  // namespace

// In the place of the C library's, for all libraries of the process.
extern "C" int pthread_create(pthread_t* thread,
                              const pthread_attr_t* attributes,
                              void* (*routine)(void*),
                              void* argument) noexcept {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(
      dlsym(RTLD_NEXT, "pthread_create"));
  const int error = create(thread, attributes, routine, argument);
  if (error == EAGAIN) End();
  return error;
}
