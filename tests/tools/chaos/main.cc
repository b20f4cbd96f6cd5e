// eplb-chaos: a TCP proxy between ranks and daemon whose faults are switched by lines on stdin.
// Exit codes: 0 at the end of stdin, 1 failed, 2 usage.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "absl/time/clock.h"

#include "tests/tools/chaos/faults.h"
#include "tests/tools/chaos/proxy.h"

#include <CLI/CLI.hpp>

namespace eplb::chaos {
namespace {

constexpr absl::Duration kMaxWait = absl::Milliseconds(100);

// Applies the whole lines of `text` and leaves the rest. Every line is answered on stdout.
void ApplyLines(std::string* text, Faults* faults) {
  size_t begin = 0;
  for (size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n', begin)) {
    const std::string line = text->substr(begin, end - begin);
    const absl::Status status = ApplyLine(line, faults);
    std::printf("%s\n", status.ok() ? "ok" : std::string(status.message()).c_str());
    begin = end + 1;
  }
  (void)std::fflush(stdout);
  text->erase(0, begin);
}

int Serve(Proxy& proxy, Faults faults) {
  std::string lines;
  std::array<char, 4096> buffer{};
  for (;;) {
    proxy.Turn(absl::Now(), faults, kMaxWait, STDIN_FILENO);
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, 0) <= 0) continue;
    const ssize_t size = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (size <= 0) return 0;
    lines.append(buffer.data(), static_cast<size_t>(size));
    ApplyLines(&lines, &faults);
  }
}

int Main(int argc, char** argv) {
  std::string listen = "127.0.0.1:0";
  std::string target;
  std::vector<std::string> lines;
  uint64_t seed = 1;
  CLI::App app{"TCP proxy with faults; further lines like those of --fault come on stdin"};
  app.add_option("--listen", listen, "HOST:PORT, port 0 picks one")->capture_default_str();
  app.add_option("--to", target, "HOST:PORT of the real server")->required();
  app.add_option("--fault", lines,
                 "delay TIME, jitter TIME, drop on|off, stall on|off, corrupt "
                 "PROBABILITY, rate BYTES_PER_SECOND, cut, clear");
  app.add_option("--seed", seed, "Of jitter and corruption")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {  // CLI11 reports by exceptions; they end here
    std::fprintf(stderr, "eplb-chaos: %s\n", error.what());
    return 2;
  }
  Faults faults;
  absl::Status status;
  for (const std::string& line : lines) status.Update(ApplyLine(line, &faults));
  const absl::StatusOr<std::unique_ptr<Proxy>> proxy = Proxy::Make(listen, target, seed);
  status.Update(proxy.status());
  if (!status.ok()) {
    std::fprintf(stderr, "eplb-chaos: %s\n", std::string(status.message()).c_str());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  std::printf("{\"event\":\"listening\",\"address\":\"%s\"}\n", (*proxy)->address().c_str());
  (void)std::fflush(stdout);
  return Serve(**proxy, faults);
}

}  // namespace
}  // namespace eplb::chaos

// An exception of CLI11 while options are declared is a bug of this file and must end the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return eplb::chaos::Main(argc, argv); }
