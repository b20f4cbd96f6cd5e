#include "tests/bench/child_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eplb::bench {
namespace {

constexpr int kPatienceMs = 20'000;
constexpr size_t kLongestLine = 4096;

// Returns the first line written to `fd`; a part of it after a time-out or at the end of the file.
std::string FirstLine(int fd) {
  std::string line;
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  while (line.size() < kLongestLine && poll(&readable, 1, kPatienceMs) == 1) {
    char byte = 0;
    if (read(fd, &byte, 1) != 1 || byte == '\n') break;
    line += byte;
  }
  return line;
}

// {"event":"listening","grpc":"127.0.0.1:29610",..}: empty when that is not what the line says.
std::string EndpointIn(std::string_view line) {
  constexpr std::string_view kKey = "\"grpc\":\"";
  const size_t key = line.find(kKey);
  if (key == std::string_view::npos) return "";
  const std::string_view rest = line.substr(key + kKey.size());
  return std::string(rest.substr(0, rest.find('"')));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildDaemon>> ChildDaemon::Start() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string program = self.parent_path().parent_path() / "bin" / "eplbd";
  int ends[2] = {-1, -1};
  if (failed || pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError("no name of this program, or no pipe");
  }
  const pid_t pid = fork();
  if (pid == 0) {  // only what is safe in the child of a process with threads
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(ends[1], STDOUT_FILENO);
    (void)execl(program.c_str(), "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                "--store", "memory", "--set", "listen.unix=none", "--log-level", "error", nullptr);
    _exit(127);
  }
  (void)close(ends[1]);
  std::unique_ptr<ChildDaemon> daemon;
  if (pid > 0) {
    daemon.reset(new ChildDaemon(pid));
    daemon->endpoint_ = EndpointIn(FirstLine(ends[0]));
  }
  (void)close(ends[0]);
  if (daemon == nullptr || daemon->endpoint_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(program, " does not serve"));
  }
  return daemon;
}

ChildDaemon::~ChildDaemon() {
  (void)kill(pid_, SIGKILL);
  (void)waitpid(pid_, nullptr, 0);
}

}  // namespace eplb::bench
