#include <terrace/aio/thread_identity.h>

#include <pthread.h>
#include <signal.h>

namespace terrace::io {

void become_background_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace terrace::io
