// eplbd: reads its configuration, serves until SIGTERM or SIGINT, drains, exits.
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "placement/status_macros.h"
#include "proto/wire/json_value.h"
#include "proto/wire/tls_files.h"
#include "server/config.h"
#include "server/config_print.h"
#include "server/daemon.h"
#include "server/descriptor_plan.h"
#include "server/log.h"
#include "server/options.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/monotonic_clock.h"
#include "server/service_manager.h"

namespace eplb {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;
constexpr absl::Duration kRemind = absl::Hours(1);  // of --insecure-network
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kShutdown = absl::Seconds(1);    // of the grace, kept for closing streams
constexpr absl::Duration kLastResort = absl::Seconds(5);  // beyond the grace

std::vector<std::pair<std::string, std::string>> Environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

// HTTP is never encrypted, gRPC with tls.cert.
absl::Status CheckNetwork(const DaemonConfig& config, bool insecure_network) {
  if (insecure_network) return absl::OkStatus();
  if (!config.grpc.IsLoopback() && !config.tls.enabled()) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.grpc.Text(),
        ": other machines reach this address and nothing is encrypted; set tls.cert, tls.key and "
        "tls.ca, listen on loopback or give --insecure-network"));
  }
  if (config.http.IsLoopback()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(config.http.Text(),
                   ": other machines reach this address and HTTP is not encrypted; listen on "
                   "loopback or give --insecure-network"));
}

absl::StatusOr<DaemonConfig> Configure(const Options& options) {
  ConfigSources sources = options.sources;
  sources.environment = Environment();
  EPLB_ASSIGN_OR_RETURN(DaemonConfig config, LoadConfig(sources));
  EPLB_RETURN_IF_ERROR(CheckNetwork(config, options.insecure_network));
  EPLB_RETURN_IF_ERROR(
      wire::CheckTlsFiles({.ca = config.tls.ca, .cert = config.tls.cert, .key = config.tls.key}));
  return config;
}

// The folder of the default store is ours to make; a folder that somebody named must be there.
absl::Status ChooseStore(DaemonConfig* config) {
  if (!config->store_path.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(config->store_path, DefaultStorePath(Environment()));
  const std::filesystem::path folder = std::filesystem::path(config->store_path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(folder.string(), ": cannot be created: ", error.message()));
}

// Makes the folder of `socket` when its parent is there. False when no file can be made in it.
bool CanHold(const std::filesystem::path& socket) {
  const std::filesystem::path folder = socket.parent_path();
  // 0755: others may look for the socket, whose own mode says who may connect.
  constexpr mode_t kFolderMode = 0755;
  if (mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) return false;
  return access(folder.c_str(), W_OK | X_OK) == 0;
}

// Decides what "auto" is. Nobody asked for that socket, so nothing fails without it.
void ChooseUnixSocket(DaemonConfig* config) {
  if (config->unix_socket != kAutoSocket) return;
  config->unix_socket = kNoSocket;
  if (config->grpc.is_unix()) return;
  for (const std::string& socket : DefaultUnixSockets(Environment())) {
    if (!CanHold(socket)) continue;
    config->unix_socket = socket;
    config->unix_socket_optional = true;
    return;
  }
}

// Blocks the signals in every thread; they are read from the returned descriptor.
int OpenSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  (void)std::signal(SIGPIPE, SIG_IGN);
  (void)std::signal(SIGXFSZ, SIG_IGN);  // a file size limit shall fail a write, as a full disk does
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

// The signal's number, or 0 after the timeout (negative: none).
int WaitForSignal(int descriptor, int timeout_ms) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return 0;
  signalfd_siginfo info{};
  if (read(descriptor, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

// Returns the signal that ends the daemon. Until then reminds of an open network, and tells whoever
// watches that the daemon is alive.
int Watch(const Daemon& daemon, int signals, bool insecure_network, ServiceManager& manager) {
  absl::Time remind = insecure_network ? MonotonicNow() : absl::InfiniteFuture();
  absl::Time tell = MonotonicNow() + manager.alive_every();
  while (true) {
    const absl::Time now = MonotonicNow();
    if (now >= remind) {
      Log(LogLevel::kWarn, "insecure_network",
          {{"reason", "other machines may reach this daemon and not everything is encrypted"}});
      remind = now + kRemind;
    }
    if (now >= tell) {
      manager.Alive(daemon.Alive());
      tell = now + manager.alive_every();
    }
    const absl::Duration rest = std::min(kRemind, std::min(remind, tell) - now);
    const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(rest)) + 1;
    if (const int signal = WaitForSignal(signals, timeout_ms); signal != 0) return signal;
  }
}

// Ends the process when what should have ended by `deadline` has not: a supervisor shall not wait
// for a stream that never ends. The process always ends by _Exit, so nothing has to wait for this
// thread.
void EndAt(absl::Time deadline) {
  std::thread([deadline] {
    absl::SleepFor(deadline - MonotonicNow());
    Log(LogLevel::kError, "shutdown_stuck",
        {{"reason", "streams or calls did not end; the process ends without them"}});
    StopLog();
    std::_Exit(kFailed);
  }).detach();
}

// Ends within `grace`. A second signal ends the process at once.
void Drain(Daemon* daemon, int signals, absl::Duration grace) {
  const absl::Time deadline = MonotonicNow() + grace;
  const absl::Duration closing = std::min(kShutdown, grace / 2);
  EndAt(deadline + kLastResort);
  daemon->BeginDrain(grace);
  Log(LogLevel::kInfo, "draining",
      {{"sessions", int64_t{daemon->open_sessions()}}, {"grace", absl::FormatDuration(grace)}});
  while (daemon->open_sessions() > 0 && MonotonicNow() < deadline - closing) {
    if (WaitForSignal(signals, static_cast<int>(absl::ToInt64Milliseconds(kPoll))) == 0) continue;
    StopLog();
    std::_Exit(kFailed);
  }
  daemon->Shutdown(closing / 2);
}

int Fail(int code, const absl::Status& status) {
  StopLog();
  (void)std::fprintf(stderr, "eplbd: %s\n", std::string(status.message()).c_str());
  return code;
}

int Serve(DaemonConfig config, bool insecure_network) {
  const int signals = OpenSignals();
  if (const absl::Status status = ChooseStore(&config); !status.ok()) {
    return Fail(kFailed, status);
  }
  ChooseUnixSocket(&config);
  StartLog(config.log_level, LogFormatOf(config.log_format));
  RouteGrpcLog();
  for (std::string& unknown : UnknownVariables(Environment())) {
    Log(LogLevel::kWarn, "unknown_variable", {{"reason", std::move(unknown)}});
  }
  for (std::string& doubtful : DoubtfulValues(config)) {
    Log(LogLevel::kWarn, "doubtful_value", {{"reason", std::move(doubtful)}});
  }
  (void)RaiseDescriptorLimit();
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config);
  if (!daemon.ok()) return Fail(kFailed, daemon.status());
  const std::string grpc = (*daemon)->grpc_address().Text();
  const std::string http = (*daemon)->http_address().Text();
  const std::string& socket = (*daemon)->unix_socket();
  const std::string beside =
      socket.empty() ? "" : absl::StrCat(",\"unix\":", wire::JsonQuote("unix:" + socket));
  (void)std::printf("{\"event\":\"listening\",\"grpc\":%s,\"http\":%s%s}\n",
                    wire::JsonQuote(grpc).c_str(), wire::JsonQuote(http).c_str(), beside.c_str());
  (void)std::fflush(stdout);
  Log(LogLevel::kInfo, "listening",
      {{"grpc", grpc},
       {"http", http},
       {"unix", socket.empty() ? kNoSocket : socket},
       {"store", config.store_path},
       {"version", DaemonVersion()}});
  ServiceManager manager;
  manager.Ready(absl::StrCat("serves on ", grpc));
  const int signal = Watch(**daemon, signals, insecure_network, manager);
  Log(LogLevel::kInfo, "signal", {{"number", int64_t{signal}}});
  manager.Stopping(config.drain_grace);
  Drain(daemon->get(), signals, config.drain_grace);
  Log(LogLevel::kInfo, "stopped");
  StopLog();
  // Not a return: the store is closed and nothing is served any more, but a policy at work would be
  // waited for, longer than the grace.
  std::_Exit(EXIT_SUCCESS);
}

// --check-config and --print-config: what is in force on stdout, what is doubtful on stderr.
int Show(const Options& options, DaemonConfig config) {
  std::vector<std::string> warnings = UnknownVariables(Environment());
  for (std::string& doubtful : DoubtfulValues(config)) warnings.push_back(std::move(doubtful));
  for (const std::string& warning : warnings) {
    (void)std::fprintf(stderr, "eplbd: warning: %s\n", warning.c_str());
  }
  if (options.check_config) {
    (void)std::printf("%s\n", ConfigSummary(config, options.sources.file).c_str());
    return EXIT_SUCCESS;
  }
  if (config.store_path.empty()) {
    const absl::StatusOr<std::string> path = DefaultStorePath(Environment());
    if (path.ok()) config.store_path = *path;
  }
  (void)std::fputs(ConfigToml(config).c_str(), stdout);
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  const ParsedOptions parsed = ParseOptions(
      argc, argv, absl::StrCat("eplbd ", DaemonVersion(), " (gRPC ", GrpcVersion(), ")"));
  (void)std::fputs(parsed.stdout_text.c_str(), stdout);
  (void)std::fputs(parsed.stderr_text.c_str(), stderr);
  if (!parsed.options) return parsed.exit_code;
  const absl::StatusOr<DaemonConfig> config = Configure(*parsed.options);
  if (!config.ok()) return Fail(kUsageError, config.status());
  if (parsed.options->check_config || parsed.options->print_config) {
    return Show(*parsed.options, *config);
  }
  return Serve(*config, parsed.options->insecure_network);
}

}  // namespace
}  // namespace eplb

int main(int argc, char** argv) { return eplb::Main(argc, argv); }
