// eplbd: reads its configuration, serves until SIGTERM or SIGINT, drains and exits.
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/thread_room.h"
#include "base/tls_files.h"
#include "server/config/config.h"
#include "server/config/config_toml.h"
#include "server/daemon.h"
#include "server/descriptor_plan.h"
#include "server/options.h"
#include "server/process/begin_anew.h"
#include "server/process/log.h"
#include "server/process/service_manager.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/grpc_version.h"
#include "server/standby_daemon.h"

namespace eplb {
namespace {

constexpr int kThreadsOfDaemon = 32;  // 26 when it begins to serve, some more later
constexpr int kFailed = 1;
constexpr int kUsageError = 2;
constexpr absl::Duration kRemind = absl::Hours(1);  // between warnings of an open network
constexpr absl::Duration kStandbyTurn = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kShutdown = absl::Seconds(1);    // part of the grace, for closing streams
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
  if (!config.grpc().IsLoopback() && !config.tls().enabled()) {
    return InvalidInput(
        config.keys.listen().grpc(),
        ": other machines reach this address and nothing is encrypted; set tls.cert, tls.key and "
        "tls.ca, listen on loopback or give --insecure-network");
  }
  if (config.http().IsLoopback()) return absl::OkStatus();
  return InvalidInput(config.keys.listen().http(),
                      ": other machines reach this address and HTTP is not encrypted; listen on "
                      "loopback or give --insecure-network");
}

// The text of the configuration file, empty without one.
std::string config_text;

absl::StatusOr<std::string> ReadConfigText(const std::string& file) {
  if (HasBegunAnew()) {
    EPLB_ASSIGN_OR_RETURN(const std::optional<std::string> inherited, InheritedText());
    if (inherited) return *inherited;
  }
  return file.empty() ? "" : ReadConfigFile(file);
}

absl::StatusOr<DaemonConfig> Configure(const Options& options) {
  ConfigSources sources = options.sources;
  sources.environment = Environment();
  EPLB_ASSIGN_OR_RETURN(config_text, ReadConfigText(sources.file));
  sources.file_text = config_text;
  EPLB_ASSIGN_OR_RETURN(DaemonConfig config, LoadConfig(sources));
  EPLB_RETURN_IF_ERROR(CheckNetwork(config, options.insecure_network));
  const TlsOptions tls = config.tls();
  EPLB_RETURN_IF_ERROR(wire::CheckTlsFiles({.ca = tls.ca, .cert = tls.cert, .key = tls.key}));
  EPLB_RETURN_IF_ERROR(wire::CheckTlsFiles(config.etcd_tls()));
  return config;
}

// Makes the folder of the default store. A folder that the configuration names must be there.
absl::Status ChooseStore(v1::Configuration::Store* store) {
  if (!store->path().empty()) return absl::OkStatus();
  if (store->backend() != kSqliteBackend) {
    store->set_path(store->backend());
    return absl::OkStatus();
  }
  EPLB_ASSIGN_OR_RETURN(*store->mutable_path(), DefaultStorePath(Environment()));
  const std::filesystem::path folder = std::filesystem::path(store->path()).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return Unavailable(folder.string(), ": cannot be created: ", error.message());
}

// Makes the folder of `socket` if its parent is there. Returns false if no file can be made in it.
bool CanHold(const std::filesystem::path& socket) {
  const std::filesystem::path folder = socket.parent_path();
  // Other users may look for the socket. Its own mode decides which of them may connect.
  constexpr mode_t kFolderMode = 0755;
  if (mkdir(folder.c_str(), kFolderMode) != 0 && errno != EEXIST) return false;
  return access(folder.c_str(), W_OK | X_OK) == 0;
}

// Chooses the socket of "auto". The user did not ask for that socket, so nothing fails without it.
void ChooseUnixSocket(DaemonConfig* config) {
  v1::Configuration::Listen& listen = *config->keys.mutable_listen();
  if (listen.unix() != kAutoSocket) return;
  listen.set_unix(kNoSocket);
  if (config->grpc().is_unix()) return;
  for (const std::string& socket : DefaultUnixSockets(Environment())) {
    if (!CanHold(socket)) continue;
    listen.set_unix(socket);
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
  (void)std::signal(SIGXFSZ, SIG_IGN);  // a file size limit fails a write, as a full disk does
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

// Returns the signal's number, or 0 after the timeout (negative: none).
int WaitForSignal(int descriptor, int timeout_ms) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, timeout_ms) <= 0) return 0;
  signalfd_siginfo info{};
  if (read(descriptor, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

// Returns the signal that ends the daemon. Until then logs warnings of an open network, and tells
// systemd that the daemon is alive.
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

// Ends the process at `deadline`, so that a supervisor does not wait for a stream that never ends.
// Nothing has to wait for this thread, because the process always ends by _Exit.
void EndAt(absl::Time deadline, const StandbyDaemon* standby) {
  std::thread([deadline, standby] {
    absl::SleepFor(deadline - MonotonicNow());
    const std::string trouble = standby == nullptr ? "" : standby->Trouble();
    Log(LogLevel::kError, "shutdown_stuck",
        {{"reason", absl::StrCat("streams or calls did not end; the process ends without them",
                                 trouble.empty() ? "" : "; ", trouble)}});
    StopLog();
    std::_Exit(kFailed);
  }).detach();
}

// Drains the daemon within `grace`. A second signal ends the process at once.
void Drain(Daemon* daemon, const StandbyDaemon* standby, int signals, absl::Duration grace) {
  const absl::Time deadline = MonotonicNow() + grace;
  const absl::Duration closing = std::min(kShutdown, grace / 2);
  EndAt(deadline + kLastResort, standby);
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
  (void)std::fprintf(stderr, "eplbd: %s\n",
                     Printable({status.message().data(), status.message().size()}).c_str());
  return code;
}

void PrintListening(const Address& grpc, const Address& http, const std::string& socket,
                    const std::string& store) {
  const std::string beside =
      socket.empty() ? "" : absl::StrCat(",\"unix\":", wire::JsonQuote("unix:" + socket));
  (void)std::printf("{\"event\":\"listening\",\"grpc\":%s,\"http\":%s%s}\n",
                    wire::JsonQuote(grpc.Text()).c_str(), wire::JsonQuote(http.Text()).c_str(),
                    beside.c_str());
  (void)std::fflush(stdout);
  Log(LogLevel::kInfo, "listening",
      {{"grpc", grpc.Text()},
       {"http", http.Text()},
       {"unix", socket.empty() ? kNoSocket : socket},
       {"store", store},
       {"version", DaemonVersion()}});
}

// State of a daemon that shares its store.

std::atomic<bool> draining = false;  // the lead ends because the process ends

// Arguments of the process.
char** arguments = nullptr;
// Descriptor that holds config_text from the start on, because none may be left when the lead is
// lost. If none, the configuration is read again then.
std::optional<int> held_text;

void HoldConfiguration() {
  const absl::StatusOr<int> text = HoldText(config_text);
  if (text.ok()) {
    held_text = *text;
    return;
  }
  Log(LogLevel::kWarn, "configuration_read_again",
      {{"reason", absl::StrCat("a daemon that loses the lead reads its file again, because the "
                               "configuration cannot be held in memory: ",
                               std::string(text.status().message()))}});
}

// Another daemon may lead, so nothing of this process may act any more. The process begins anew as
// a standby without memory, threads or connections of the lead. It keeps its configuration, because
// an edit of the file may be half done.
void StepDown(const std::string& why) {
  static std::mutex once;  // held until the process is another one
  once.lock();
  Log(LogLevel::kError, "lead_lost", {{"reason", why}});
  StopLog();
  if (draining) std::_Exit(EXIT_SUCCESS);
  BeginAnew(arguments, held_text);
  std::_Exit(kFailed);
}

std::atomic<const Daemon*> serving = nullptr;

// Returns true if no rank was connected since the previous call. Ranks that are refused reach this
// daemon as well.
bool ServesNobody() {
  static int64_t seen = -1;  // used by the election's thread alone
  const Daemon* daemon = serving;
  if (daemon == nullptr) return false;
  const int64_t before = std::exchange(seen, daemon->streams_seen());
  return daemon->open_sessions() == 0 && before == seen;
}

// Stands by until this daemon leads. Returns the signal that ended the wait, or 0.
int StandBy(StandbyDaemon& standby, int signals, ServiceManager& manager) {
  while (!standby.Turn(kStandbyTurn)) {
    if (const int signal = WaitForSignal(signals, 0); signal != 0) return signal;
    manager.Alive(absl::OkStatus());
  }
  return 0;
}

int ServeDaemon(const DaemonConfig& config, std::unique_ptr<Store> store, StandbyDaemon* standby,
                int signals, bool insecure_network, ServiceManager& manager) {
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, std::move(store));
  if (!daemon.ok()) {
    if (standby != nullptr) standby->Resign();
    return Fail(kFailed, daemon.status());
  }
  if (standby == nullptr) {
    PrintListening((*daemon)->grpc_address(), (*daemon)->http_address(), (*daemon)->unix_socket(),
                   config.keys.store().path());
  }
  manager.Ready(absl::StrCat("serves on ", (*daemon)->grpc_address().Text()));
  serving = daemon->get();
  const int signal = Watch(**daemon, signals, insecure_network, manager);
  Log(LogLevel::kInfo, "signal", {{"number", int64_t{signal}}});
  serving = nullptr;
  draining = true;
  const absl::Duration grace = absl::Seconds(config.keys.drain().grace_seconds());
  manager.Stopping(grace);
  Drain(daemon->get(), standby, signals, grace);
  if (standby != nullptr) standby->Resign();
  Log(LogLevel::kInfo, "stopped");
  StopLog();
  // A return would wait for a policy at work, perhaps longer than the grace. The store is closed
  // and nothing is served any more.
  std::_Exit(EXIT_SUCCESS);
}

// Serves as one of several daemons, which first stands by.
int ServeStandby(DaemonConfig config, int signals, bool insecure_network) {
  HoldConfiguration();
  absl::StatusOr<std::unique_ptr<StandbyDaemon>> standby = StandbyDaemon::Start(config);
  if (!standby.ok()) return Fail(kFailed, standby.status());
  config.keys.mutable_listen()->set_grpc((*standby)->grpc_address().Text());
  config.keys.mutable_listen()->set_http((*standby)->http_address().Text());
  PrintListening(config.grpc(), config.http(), "", config.keys.store().path());
  ServiceManager manager;
  manager.Ready(absl::StrCat("stands by on ", config.keys.listen().grpc()));
  if (const int signal = StandBy(**standby, signals, manager); signal != 0) {
    Log(LogLevel::kInfo, "signal", {{"number", int64_t{signal}}});
    StopLog();
    std::_Exit(EXIT_SUCCESS);
  }
  absl::StatusOr<std::unique_ptr<Store>> store = (*standby)->Lead(&StepDown, &ServesNobody);
  // An etcd that does not answer now may answer the next daemon, which may be this one.
  if (absl::IsUnavailable(store.status()) || absl::IsDeadlineExceeded(store.status())) {
    StepDown(std::string(store.status().message()));
  }
  if (!store.ok()) {
    (*standby)->Resign();
    return Fail(kFailed, store.status());
  }
  return ServeDaemon(config, *std::move(store), standby->get(), signals, insecure_network, manager);
}

int Serve(DaemonConfig config, bool insecure_network) {
  const int signals = OpenSignals();
  if (const absl::Status room = CheckThreadRoom(kThreadsOfDaemon); !room.ok()) {
    return Fail(kFailed, room);
  }
  const absl::Status chosen = ChooseStore(config.keys.mutable_store());
  if (!chosen.ok()) return Fail(kFailed, chosen);
  ChooseUnixSocket(&config);
  StartLog(config.keys.log().level(), LogFormatOf(config.keys.log().format()));
  RouteGrpcLog();
  for (std::string& unknown : UnknownVariables(Environment())) {
    Log(LogLevel::kWarn, "unknown_variable", {{"reason", std::move(unknown)}});
  }
  for (std::string& doubtful : DoubtfulValues(config)) {
    Log(LogLevel::kWarn, "doubtful_value", {{"reason", std::move(doubtful)}});
  }
  if (std::string advisory = GrpcAdvisory(GrpcVersion());
      !config.grpc().IsLoopback() && !advisory.empty()) {
    Log(LogLevel::kWarn, "old_grpc", {{"reason", std::move(advisory)}});
  }
  (void)RaiseDescriptorLimit();
  if (config.keys.store().backend() == kEtcdBackend) {
    return ServeStandby(config, signals, insecure_network);
  }
  ServiceManager manager;
  return ServeDaemon(config, nullptr, nullptr, signals, insecure_network, manager);
}

// --check-config and --print-config: the configuration on stdout, warnings on stderr.
int Show(const Options& options, DaemonConfig config) {
  std::vector<std::string> warnings = UnknownVariables(Environment());
  for (std::string& doubtful : DoubtfulValues(config)) warnings.push_back(std::move(doubtful));
  for (const std::string& warning : warnings) {
    (void)std::fprintf(stderr, "eplbd: warning: %s\n", Printable(warning).c_str());
  }
  if (options.check_config) {
    (void)std::printf("%s\n", Printable(ConfigSummary(config, options.sources.file)).c_str());
    return EXIT_SUCCESS;
  }
  v1::Configuration::Store& store = *config.keys.mutable_store();
  if (store.path().empty() && store.backend() == kSqliteBackend) {
    const absl::StatusOr<std::string> path = DefaultStorePath(Environment());
    if (path.ok()) store.set_path(*path);
  }
  (void)std::fputs(ConfigToml(config).c_str(), stdout);
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  arguments = argv;
  const ParsedOptions parsed = ParseOptions(
      argc, argv, absl::StrCat("eplbd ", DaemonVersion(), " (gRPC ", GrpcVersion(), ")"));
  (void)std::fputs(parsed.stdout_text.c_str(), stdout);
  (void)std::fputs(parsed.stderr_text.c_str(), stderr);
  if (!parsed.options) return parsed.exit_code;
  const absl::StatusOr<DaemonConfig> config = Configure(*parsed.options);
  // A supervisor restarts after kFailed. A change of the TLS files, or of the configuration that
  // the daemon could not hold, may be half done.
  if (!config.ok()) return Fail(HasBegunAnew() ? kFailed : kUsageError, config.status());
  if (parsed.options->check_config || parsed.options->print_config) {
    return Show(*parsed.options, *config);
  }
  return Serve(*config, parsed.options->insecure_network);
}

}  // namespace
}  // namespace eplb

int main(int argc, char** argv) {
  // Abseil as Debian builds it looks for cycles of locks at each lock, under one lock of its own.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  try {
    return eplb::Main(argc, argv);
  } catch (const std::exception& error) {  // thrown by a library, for example when memory is short
    (void)std::fprintf(stderr, "eplbd: %s\n", eplb::Printable(error.what()).c_str());
    return EXIT_FAILURE;
  }
}
