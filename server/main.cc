// eplbd's command line.
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
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
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/command_line.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/thread_room.h"
#include "base/tls_files.h"
#include "server/config/config.h"
#include "server/config/config_help.h"
#include "server/config/config_keys.h"
#include "server/config/config_toml.h"
#include "server/daemon.h"
#include "server/process/begin_anew.h"
#include "server/process/log.h"
#include "server/replica.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/grpc_version.h"

#include <CLI/CLI.hpp>

namespace eplb {
namespace {

struct Options {
  ConfigSources sources;          // file and flags; the environment is the caller's
  bool check_config = false;      // read the configuration, say what is wrong, do nothing else
  bool print_config = false;      // read the configuration, print it, do nothing else
  bool insecure_network = false;  // listen off loopback without encryption
};

struct ParsedOptions {
  std::optional<Options> options;  // none: `exit_code` is all there is to do
  int exit_code = 0;
  std::string stdout_text = {};
  std::string stderr_text = {};
};

// version: the text of --version, without a newline.
ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version);

// What systemd is told of a daemon that it started (Type=notify, WatchdogSec=).

// Does nothing in a process that was started otherwise: the environment has no NOTIFY_SOCKET then.
// A message that cannot be sent is logged once.
// threads: one at a time.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  ServiceManager();

  // The daemon serves. status: a line for `systemctl status`.
  void Ready(const std::string& status);
  // The daemon drains and needs at most `grace`.
  void Stopping(absl::Duration grace);

  // Between two calls of Alive; infinite when nobody watches.
  absl::Duration alive_every() const { return alive_every_; }
  // Not ok: nothing is sent, so that systemd restarts the daemon; logged once in a row.
  void Alive(const absl::Status& status);

 private:
  void Send(const std::string& message);

  absl::Duration alive_every_ = absl::InfiniteDuration();
  bool failure_logged_ = false;
  bool was_alive_ = true;
};

constexpr int kBadOptions = 2;

std::vector<const ConfigKey*> KeysWithFlag() {
  std::vector<const ConfigKey*> found;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.flag.name != nullptr) found.push_back(&key);
  }
  return found;
}

// Every flag with its help, as --help shows them.
std::vector<std::pair<std::string, std::string>> FlagsOf(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> flags;
  for (const CLI::Option* option : app.get_options()) {
    flags.emplace_back(option->get_name(false, true), option->get_description());
  }
  return flags;
}

ParsedOptions ParseOptions(int argc, const char* const* argv, const std::string& version) {
  CLI::App app("Expert-parallel load balancer: the daemon.", "eplbd");
  Options options;
  std::vector<std::string> settings;
  const std::vector<const ConfigKey*> flags = KeysWithFlag();
  std::vector<std::string> values(flags.size());
  app.set_version_flag("--version", version);
  app.add_option("--config", options.sources.file, "TOML file; EPLB_* and flags override it");
  for (size_t i = 0; i < flags.size(); ++i) {
    app.add_option(flags[i]->flag.name, values[i], flags[i]->flag.help);
  }
  app.add_option("--set", settings, "any key of the configuration, KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--check-config", options.check_config, "check the configuration and exit: 0 or 2");
  app.add_flag("--print-config", options.print_config,
               "print the configuration in force as TOML, with the source of each value");
  app.add_flag("--insecure-network", options.insecure_network,
               "listen on addresses that other machines reach, without encryption");
  bool help_config = false;
  bool manual = false;
  app.add_flag("--help-config", help_config, "print the keys of the configuration");
  app.add_flag("--man", manual, "print the manual page: eplbd --man | man -l -");
  app.footer("`eplbd --help-config` shows the keys of the configuration and their variables.\n");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // the library's way to say --help, too
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    if (code == 0) return {.options = {}, .exit_code = 0, .stdout_text = out.str()};
    return {.options = {},
            .exit_code = kBadOptions,
            .stderr_text = absl::StrCat("eplbd: ", ExplainParseError(app, error), "\n")};
  }
  if (help_config) return {.options = {}, .stdout_text = ConfigHelp()};
  if (manual) return {.options = {}, .stdout_text = ManualPage(version, FlagsOf(app))};
  if (app.count("--config") > 0 && options.sources.file.empty()) {
    return {.options = {},
            .exit_code = kBadOptions,
            .stderr_text = "eplbd: --config has an empty value\n"};
  }
  for (size_t i = 0; i < flags.size(); ++i) {
    if (app.count(flags[i]->flag.name) > 0) {
      options.sources.flags.emplace_back(flags[i]->name, values[i]);
    }
  }
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return {.options = {},
              .exit_code = kBadOptions,
              .stderr_text = "eplbd: --set " + Printable(setting) + ": expected KEY=VALUE\n"};
    }
    options.sources.flags.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return {.options = std::move(options)};
}

ServiceManager::ServiceManager() {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) > 0) {
    // Three times within the limit, so that one late wake-up is no restart.
    alive_every_ = std::max(absl::Microseconds(microseconds) / 3, absl::Milliseconds(1));
  }
}

void ServiceManager::Ready(const std::string& status) {
  Send(absl::StrCat("READY=1\nSTATUS=", status));
}

void ServiceManager::Stopping(absl::Duration grace) {
  Send(absl::StrCat("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=",
                    absl::ToInt64Microseconds(grace)));
}

void ServiceManager::Alive(const absl::Status& status) {
  if (status.ok()) {
    was_alive_ = true;
    Send("WATCHDOG=1");
    return;
  }
  if (was_alive_) Log(LogLevel::kError, "not_alive", {{"reason", status.ToString()}});
  was_alive_ = false;
}

void ServiceManager::Send(const std::string& message) {
  const int result = sd_notify(0, message.c_str());
  if (result >= 0 || failure_logged_) return;
  failure_logged_ = true;
  Log(LogLevel::kWarn, "notify_failed",
      {{"reason",
        absl::StrCat("systemd cannot be notified: ", std::generic_category().message(-result))}});
}

// eplbd: reads its configuration, serves until SIGTERM or SIGINT, drains, exits.

constexpr int kThreadsOfDaemon = 32;  // 26 when it begins to serve, some more later
constexpr int kFailed = 1;
constexpr int kUsageError = 2;
constexpr absl::Duration kRemind = absl::Hours(1);  // of --insecure-network
constexpr absl::Duration kStandbyTurn = absl::Seconds(1);
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
  EPLB_RETURN_IF_ERROR(
      wire::CheckTlsFiles({.ca = config.tls.ca, .cert = config.tls.cert, .key = config.tls.key}));
  EPLB_RETURN_IF_ERROR(wire::CheckTlsFiles(config.etcd.tls));
  return config;
}

// The folder of the default store is ours to make; a folder that somebody named must be there.
absl::Status ChooseStore(DaemonConfig* config) {
  if (!config->store_path.empty()) return absl::OkStatus();
  if (config->store_backend != kSqliteBackend) {
    config->store_path = config->store_backend;
    return absl::OkStatus();
  }
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
void EndAt(absl::Time deadline, const Replica* replica) {
  std::thread([deadline, replica] {
    absl::SleepFor(deadline - MonotonicNow());
    const std::string trouble = replica == nullptr ? "" : replica->Trouble();
    Log(LogLevel::kError, "shutdown_stuck",
        {{"reason", absl::StrCat("streams or calls did not end; the process ends without them",
                                 trouble.empty() ? "" : "; ", trouble)}});
    StopLog();
    std::_Exit(kFailed);
  }).detach();
}

// Ends within `grace`. A second signal ends the process at once.
void Drain(Daemon* daemon, const Replica* replica, int signals, absl::Duration grace) {
  const absl::Time deadline = MonotonicNow() + grace;
  const absl::Duration closing = std::min(kShutdown, grace / 2);
  EndAt(deadline + kLastResort, replica);
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

// Of a daemon that shares its store.

std::atomic<bool> draining = false;  // the lead ends because the process does

// What the daemon was started with.
char** arguments = nullptr;
// Holds config_text from the start on, because a descriptor may not be left when the lead is lost.
// None: the configuration is read again then.
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
// a standby: no memory, thread or connection of the lead is left. It keeps the configuration that
// it ran with, because the file may be in the middle of an edit.
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

// Since the last question. Ranks that are refused reach this daemon, too.
bool ServesNobody() {
  static int64_t seen = -1;  // of one thread, the election's
  const Daemon* daemon = serving;
  if (daemon == nullptr) return false;
  const int64_t before = std::exchange(seen, daemon->streams_seen());
  return daemon->open_sessions() == 0 && before == seen;
}

// Stands by until this daemon leads. Returns the signal that ended it, or 0.
int StandBy(Replica& replica, int signals, ServiceManager& manager) {
  while (!replica.Turn(kStandbyTurn)) {
    if (const int signal = WaitForSignal(signals, 0); signal != 0) return signal;
    manager.Alive(absl::OkStatus());
  }
  return 0;
}

int ServeDaemon(const DaemonConfig& config, std::unique_ptr<Store> store, Replica* replica,
                int signals, bool insecure_network, ServiceManager& manager) {
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, std::move(store));
  if (!daemon.ok()) {
    if (replica != nullptr) replica->Resign();
    return Fail(kFailed, daemon.status());
  }
  if (replica == nullptr) {
    PrintListening((*daemon)->grpc_address(), (*daemon)->http_address(), (*daemon)->unix_socket(),
                   config.store_path);
  }
  manager.Ready(absl::StrCat("serves on ", (*daemon)->grpc_address().Text()));
  serving = daemon->get();
  const int signal = Watch(**daemon, signals, insecure_network, manager);
  Log(LogLevel::kInfo, "signal", {{"number", int64_t{signal}}});
  serving = nullptr;
  draining = true;
  manager.Stopping(config.drain_grace);
  Drain(daemon->get(), replica, signals, config.drain_grace);
  if (replica != nullptr) replica->Resign();
  Log(LogLevel::kInfo, "stopped");
  StopLog();
  // Not a return: the store is closed and nothing is served any more, but a policy at work would be
  // waited for, longer than the grace.
  std::_Exit(EXIT_SUCCESS);
}

// One of several daemons: stands by first.
int ServeReplica(DaemonConfig config, int signals, bool insecure_network) {
  HoldConfiguration();
  absl::StatusOr<std::unique_ptr<Replica>> replica = Replica::Start(config);
  if (!replica.ok()) return Fail(kFailed, replica.status());
  config.grpc = (*replica)->grpc_address();
  config.http = (*replica)->http_address();
  PrintListening(config.grpc, config.http, "", config.store_path);
  ServiceManager manager;
  manager.Ready(absl::StrCat("stands by on ", config.grpc.Text()));
  if (const int signal = StandBy(**replica, signals, manager); signal != 0) {
    Log(LogLevel::kInfo, "signal", {{"number", int64_t{signal}}});
    StopLog();
    std::_Exit(EXIT_SUCCESS);
  }
  absl::StatusOr<std::unique_ptr<Store>> store = (*replica)->Lead(&StepDown, &ServesNobody);
  // An etcd that does not answer now may answer the next daemon, which may be this one.
  if (absl::IsUnavailable(store.status()) || absl::IsDeadlineExceeded(store.status())) {
    StepDown(std::string(store.status().message()));
  }
  if (!store.ok()) {
    (*replica)->Resign();
    return Fail(kFailed, store.status());
  }
  return ServeDaemon(config, *std::move(store), replica->get(), signals, insecure_network, manager);
}

int Serve(DaemonConfig config, bool insecure_network) {
  const int signals = OpenSignals();
  if (const absl::Status room = CheckThreadRoom(kThreadsOfDaemon); !room.ok()) {
    return Fail(kFailed, room);
  }
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
  if (std::string advisory = GrpcAdvisory(GrpcVersion());
      !config.grpc.IsLoopback() && !advisory.empty()) {
    Log(LogLevel::kWarn, "old_grpc", {{"reason", std::move(advisory)}});
  }
  (void)RaiseDescriptorLimit();
  if (config.store_backend == kEtcdBackend) return ServeReplica(config, signals, insecure_network);
  ServiceManager manager;
  return ServeDaemon(config, nullptr, nullptr, signals, insecure_network, manager);
}

// --check-config and --print-config: what is in force on stdout, what is doubtful on stderr.
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
  if (config.store_path.empty() && config.store_backend == kSqliteBackend) {
    const absl::StatusOr<std::string> path = DefaultStorePath(Environment());
    if (path.ok()) config.store_path = *path;
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
  // A supervisor restarts after kFailed: TLS files of a daemon that stepped down, or the
  // configuration that it could not hold, may be in the middle of a change.
  if (!config.ok()) return Fail(HasBegunAnew() ? kFailed : kUsageError, config.status());
  if (parsed.options->check_config || parsed.options->print_config) {
    return Show(*parsed.options, *config);
  }
  return Serve(*config, parsed.options->insecure_network);
}

}  // namespace
}  // namespace eplb

int main(int argc, char** argv) {
  try {
    return eplb::Main(argc, argv);
  } catch (const std::exception& error) {  // of a library, e.g. out of memory
    (void)std::fprintf(stderr, "eplbd: %s\n", eplb::Printable(error.what()).c_str());
    return EXIT_FAILURE;
  }
}
