#include "tests/gpu/rank_processes.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace eplb {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

RankProcesses::~RankProcesses() { (void)Ends(absl::ZeroDuration()); }

bool RankProcesses::Start(std::vector<std::string> arguments, std::vector<std::string> variables) {
  arguments.insert(arguments.begin(), "rank");
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  pid_t child = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, Pointers(arguments).data(),
                  Pointers(variables).data()) != 0) {
    return false;
  }
  running_.push_back(child);
  return true;
}

std::vector<int> RankProcesses::Ends(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::vector<int> ends;
  for (const pid_t rank : std::exchange(running_, {})) {
    int end = 0;
    while (waitpid(rank, &end, WNOHANG) == 0) {
      if (absl::Now() > deadline) kill(rank, SIGKILL);
      absl::SleepFor(absl::Milliseconds(5));
    }
    ends.push_back(end);
  }
  return ends;
}

std::vector<std::string> NcclVariables(const std::string& host) {
  return {"CUDA_VISIBLE_DEVICES=0", absl::StrCat("NCCL_HOSTID=", host),
          "NCCL_P2P_DISABLE=1",     "NCCL_SHM_DISABLE=1",
          "NCCL_NET=Socket",        "NCCL_IB_DISABLE=1",
          "NCCL_SOCKET_IFNAME=lo",  "NCCL_SOCKET_FAMILY=AF_INET",
          "NCCL_MNNVL_ENABLE=0",    "NCCL_NVLS_ENABLE=0",
          "NCCL_RAS_ENABLE=0",      "NCCL_PROTO=Simple",
          "NCCL_MAX_CTAS=4",        "NCCL_DEBUG=WARN"};
}

}  // namespace eplb
