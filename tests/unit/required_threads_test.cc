// A process that lacks a thread does not go on without it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <thread>

namespace {

void* DoNothing(void*) { return nullptr; }

// What pthread_create() says when a stack of so many bytes is asked for.
int CreateWithStack(std::size_t bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, bytes);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, DoNothing, nullptr);
  if (error == 0) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

TEST(RequiredThreadsTest, ThreadsAreMadeAsEver) {
  EXPECT_EQ(CreateWithStack(1 << 20), 0);
  bool ran = false;
  std::thread([&] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

TEST(RequiredThreadsTest, LackOfMemoryForAThreadEndsTheProcess) {
  EXPECT_DEATH(CreateWithStack(std::size_t{1} << 60),
               "no thread could be made.*needs more memory");
}

TEST(RequiredThreadsTest, LibrariesUseItToo) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "pthread_create"),
            reinterpret_cast<void*>(&pthread_create));
}

}  // namespace
