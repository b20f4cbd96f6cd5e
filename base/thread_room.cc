#include "base/thread_room.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

// Waits for the mutex, so that all threads live at once.
void* WaitFor(void* gate) {
  const std::lock_guard wait(*static_cast<std::mutex*>(gate));
  return nullptr;
}

// "ulimit -u is 40; pids.max of the cgroup is 64"; what is unlimited is not named.
std::string Limits() {
  std::string text;
  rlimit processes{};
  if (getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY) {
    text = absl::StrCat("ulimit -u is ", processes.rlim_cur, " for all processes of the user");
  }
  std::string group, most;
  std::ifstream("/proc/self/cgroup") >> group;  // "0::/a/b" of cgroup v2
  if (group.starts_with("0::")) {
    std::ifstream("/sys/fs/cgroup" + group.substr(3) + "/pids.max") >> most;
  }
  if (!most.empty() && most != "max") {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "pids.max of the cgroup is ", most);
  }
  return text.empty() ? "see ulimit -u and pids.max of the cgroup" : text;
}

}  // namespace

absl::Status CheckThreadRoom(int count) {
  std::mutex gate;
  std::vector<pthread_t> threads;
  int error = 0;
  {
    const std::lock_guard hold(gate);
    while (error == 0 && static_cast<int>(threads.size()) < count) {
      pthread_t thread{};
      error = pthread_create(&thread, nullptr, &WaitFor, &gate);
      if (error == 0) threads.push_back(thread);
    }
  }
  for (const pthread_t thread : threads) (void)pthread_join(thread, nullptr);
  if (error == 0) return absl::OkStatus();
  return ResourceExhausted("only ", threads.size(), " of ", count,
                           " threads can be started: ", std::strerror(error), " (", Limits(), ")");
}

}  // namespace eplb
