// A server that a measurement starts, watches and stops.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb::bench {

// Threads: one owner; `on_line` is called on a thread of the child's own.
class ChildProcess {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  // Runs command with the environment of this process and `environment` ("NAME=value") added.
  // Its first line on stdout must be {"event":"listening","grpc":"HOST:PORT",..}, within 20 s.
  // on_line gets every line of its stderr. errors: Unavailable with its last words.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& command, const std::vector<std::string>& environment,
      OnLine on_line);
  // SIGTERM, and SIGKILL after 15 s.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  bool alive() const;
  int64_t ResidentBytes() const;         // 0 once it is gone
  absl::Duration ProcessorTime() const;  // user and system; 0 once it is gone

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  int stdout_ = -1;
  int stderr_ = -1;
  std::string address_;
  std::thread reader_;
};

// The file of another program that lies beside this one.
std::string BesideThisProgram(const std::string& name);

}  // namespace eplb::bench
