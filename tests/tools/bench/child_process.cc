#include "tests/tools/bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include <nlohmann/json.hpp>

namespace eplb::bench {
namespace {

constexpr absl::Duration kStartDeadline = absl::Seconds(20);
constexpr absl::Duration kStopDeadline = absl::Seconds(15);

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Calls on_line for every line until the end of the stream.
void ReadLines(int descriptor, const ChildProcess::OnLine& on_line) {
  std::string rest;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t size = read(descriptor, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return;
    rest.append(buffer.data(), static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      if (on_line) on_line(std::string_view(rest).substr(begin, end - begin));
      begin = end + 1;
    }
    rest.erase(0, begin);
  }
}

// The first line; empty when it does not come in time.
std::string ReadFirstLine(int descriptor, absl::Time deadline) {
  std::string line;
  for (;;) {
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) return "";
    char letter = 0;
    if (read(descriptor, &letter, 1) != 1) return "";
    if (letter == '\n') return line;
    line += letter;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& command, const std::vector<std::string>& environment,
    OnLine on_line) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<std::string> variables = environment;
  // A daemon that is measured leaves the machine's default socket alone.
  variables.emplace_back("EPLB_LISTEN_UNIX=none");
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  auto child = std::unique_ptr<ChildProcess>(new ChildProcess());
  const int error = posix_spawn(&child->pid_, command[0].c_str(), &actions, nullptr,
                                Pointers(command).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  child->stdout_ = out[0];
  child->stderr_ = err[0];
  if (error != 0) {
    child->pid_ = -1;
    return absl::UnavailableError(absl::StrCat(command[0], ": ", std::strerror(error)));
  }
  const auto last_words = std::make_shared<std::string>();
  child->reader_ = std::thread([descriptor = err[0], last_words, on_line = std::move(on_line)] {
    ReadLines(descriptor, [&](std::string_view line) {
      *last_words = std::string(line);
      if (on_line) on_line(line);
    });
  });
  const std::string line = ReadFirstLine(out[0], absl::Now() + kStartDeadline);
  const nlohmann::json listening = nlohmann::json::parse(line, nullptr, false);
  if (!listening.is_object() || !listening.contains("grpc")) {
    kill(child->pid_, SIGKILL);
    child->reader_.join();  // its stderr has ended: no thread writes last_words now
    return absl::UnavailableError(absl::StrCat(command[0], " does not listen: ", *last_words));
  }
  child->address_ = listening["grpc"].get<std::string>();
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    const absl::Time deadline = absl::Now() + kStopDeadline;
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (absl::Now() > deadline) kill(pid_, SIGKILL);
      absl::SleepFor(absl::Milliseconds(10));
    }
  }
  if (reader_.joinable()) reader_.join();
  if (stdout_ >= 0) close(stdout_);
  if (stderr_ >= 0) close(stderr_);
}

bool ChildProcess::alive() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

int64_t ChildProcess::ResidentBytes() const {
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib * 1024;
  }
  return 0;
}

absl::Duration ChildProcess::ProcessorTime() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');  // the name may hold blanks
  if (name_end == std::string::npos) return absl::ZeroDuration();
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;  // state .. cmajflt
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return absl::Seconds(static_cast<double>(user + system) /
                       static_cast<double>(sysconf(_SC_CLK_TCK)));
}

std::string BesideThisProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (self.parent_path() / name).string();
}

}  // namespace eplb::bench
