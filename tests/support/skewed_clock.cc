// A library for LD_PRELOAD that gives a program another time of day, which may
// jump while it runs; CLOCK_MONOTONIC stays. How far off it is, in nanoseconds,
// is what the file SKEWED_CLOCK holds, eight bytes in the machine's order.
//
// libfaketime does not come up beside jemalloc, which asks for the time when
// the first byte is allocated: it then looks up the real function, which
// allocates. Here nothing is looked up.
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// The kernel's own entry: `syscall` is one of the functions below.
long Enter(long number, long a, long b, long c = 0, long d = 0, long e = 0,
           long f = 0) {
#if defined(__x86_64__)
  long result = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long result asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(result)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
#else
#error "no way into the kernel is known for this machine"
#endif
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

template <typename T>
long Word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

std::int64_t Offset() {
  static std::atomic<const std::atomic<std::int64_t>*> mapped{nullptr};
  const std::atomic<std::int64_t>* offset = mapped.load();
  if (offset == nullptr) {
    const char* const path = std::getenv("SKEWED_CLOCK");
    const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) std::abort();
    void* const memory =
        mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) std::abort();
    close(file);
    offset = static_cast<const std::atomic<std::int64_t>*>(memory);
    mapped.store(offset);
  }
  return offset->load();
}

timespec Moved(timespec time, std::int64_t by) {
  const std::int64_t ns = time.tv_nsec + by % kSecond;
  const std::int64_t carry = ns < 0 ? -1 : ns / kSecond;
  time.tv_sec += by / kSecond + carry;
  time.tv_nsec = ns - carry * kSecond;
  return time;
}

// What a wait until `time` waits for by the kernel's clock.
timespec Real(const timespec& time) { return Moved(time, -Offset()); }

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result =
      static_cast<int>(Enter(SYS_clock_gettime, clock, Word(time)));
  if (result == 0 &&
      (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *time = Moved(*time, Offset());
  }
  return result;
}

int gettimeofday(timeval* __restrict time, void* __restrict) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* into) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}

// Waits until a time of day have to end by the clock that they are told.

int pthread_cond_timedwait(pthread_cond_t* __restrict condition,
                           pthread_mutex_t* __restrict mutex,
                           const timespec* __restrict until) {
  // One that was made with CLOCK_MONOTONIC is told a time since the boot.
  constexpr time_t kUptimeMax = 500'000'000;
  if (until->tv_sec < kUptimeMax) {
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
  }
  const timespec real = Real(*until);
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &real);
}

// Abseil's waits.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  timespec real{};
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) != 0 &&
      words[3] != 0) {
    real = Real(*reinterpret_cast<const timespec*>(words[3]));
    words[3] = Word(&real);
  }
  return Enter(number, words[0], words[1], words[2], words[3], words[4],
               words[5]);
}

}  // extern "C"
