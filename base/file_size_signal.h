// Writes above a limit of file sizes (ulimit -f) that fail instead of ending the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace eplb {

// While it lives, a system call of this thread that would exceed the limit fails with EFBIG. The
// kernel sends SIGXFSZ to the thread as well, which by default ends the process: it is held back
// and dropped. The signal's disposition, which is the program's, stays as it is. threads: one.
class WithoutFileSizeSignal {
 public:
  WithoutFileSizeSignal() {
    (void)sigemptyset(&signal_);
    (void)sigaddset(&signal_, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~WithoutFileSizeSignal() {
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) (void)sigtimedwait(&signal_, nullptr, &now);
    (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutFileSizeSignal(const WithoutFileSizeSignal&) = delete;
  WithoutFileSizeSignal& operator=(const WithoutFileSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

}  // namespace eplb
