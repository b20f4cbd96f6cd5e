#include "client/cli/context.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "base/toml_text.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/text.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/names.h"

namespace eplb::cli {

namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

constexpr char kExpectedKeys[] =
    "expected endpoint, tls.ca, tls.cert, tls.key or tls.server_name, each a text";

absl::Status WrongKey(const std::string& path, const std::string& key, const char* expected) {
  return InvalidInput(path, ": ", Printable(key), ": ", expected);
}

absl::Status ReadTls(const std::string& path, const std::string& prefix, const toml::table& table,
                     wire::TlsFiles& tls) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  for (const auto& [name, value] : table) {
    const std::string key(name.str());
    std::string* const field = key == "ca"            ? &tls.ca
                               : key == "cert"        ? &tls.cert
                               : key == "key"         ? &tls.key
                               : key == "server_name" ? &tls.server_name
                                                      : nullptr;
    const auto* const text = value.as_string();
    if (field == nullptr || text == nullptr || text->get().empty()) {
      return WrongKey(path, absl::StrCat(prefix, "tls.", key), kExpectedKeys);
    }
    *field = text->get();
    if (field != &tls.server_name && !absl::StartsWith(*field, "/")) *field = folder + *field;
  }
  return absl::OkStatus();
}

// True when `key` is one of an address, which is read then.
absl::StatusOr<bool> ReadAddressKey(const std::string& path, const std::string& prefix,
                                    const std::string& key, const toml::node& value,
                                    DaemonAddress& address) {
  if (key == "endpoint" && value.is_string()) {
    address.endpoint = value.as_string()->get();
    return true;
  }
  if (key != "tls" || !value.is_table()) return false;
  EPLB_RETURN_IF_ERROR(ReadTls(path, prefix, *value.as_table(), address.tls));
  return true;
}

absl::StatusOr<Context> ReadContext(const std::string& path, const std::string& name,
                                    const toml::node& node) {
  const std::string prefix = absl::StrCat("contexts.", name, ".");
  if (!wire::CheckPlainName("context", name).ok()) {
    return WrongKey(path, absl::StrCat("contexts.", name),
                    "expected a name of letters, digits, '.', '_' and '-'");
  }
  if (!node.is_table()) return WrongKey(path, absl::StrCat("contexts.", name), "expected a table");
  Context context{.name = name, .address = {}};
  for (const auto& [key_node, value] : *node.as_table()) {
    const std::string key(key_node.str());
    EPLB_ASSIGN_OR_RETURN(const bool known,
                          ReadAddressKey(path, prefix, key, value, context.address));
    if (!known) return WrongKey(path, prefix + key, kExpectedKeys);
  }
  if (context.address.endpoint.empty()) {
    return WrongKey(path, prefix + "endpoint", "is not set, expected HOST:PORT or unix:PATH");
  }
  return context;
}

absl::Status ReadContexts(const toml::table& table, CtlConfig& config) {
  for (const auto& [name, node] : table) {
    EPLB_ASSIGN_OR_RETURN(Context context, ReadContext(config.path, std::string(name.str()), node));
    config.contexts.push_back(std::move(context));
  }
  std::ranges::sort(config.contexts, {}, &Context::name);
  return absl::OkStatus();
}

absl::StatusOr<CtlConfig> ParseCtlConfig(const std::string& path, const std::string& text) {
  CtlConfig config{.path = path};
  EPLB_ASSIGN_OR_RETURN(const toml::table table, wire::ParseToml(path, text));
  for (const auto& [name, value] : table) {
    const std::string key(name.str());
    EPLB_ASSIGN_OR_RETURN(const bool known, ReadAddressKey(path, "", key, value, config.address));
    if (known) continue;
    if (key == "context" && value.is_string()) {
      config.in_force = value.as_string()->get();
    } else if (key == "contexts" && value.is_table()) {
      EPLB_RETURN_IF_ERROR(ReadContexts(*value.as_table(), config));
    } else {
      return WrongKey(path, key, "expected endpoint, [tls], context or [contexts.NAME]");
    }
  }
  return config;
}

// True if a line outside of tables sets `context`.
bool SetsContext(std::string line) {
  constexpr std::string_view kKey = "context";
  absl::StripAsciiWhitespace(&line);
  if (!line.starts_with(kKey)) return false;
  line.erase(0, kKey.size());
  absl::StripLeadingAsciiWhitespace(&line);
  return line.starts_with("=");
}

constexpr char kDefaultEndpoint[] = "127.0.0.1:29610";
constexpr char kServiceSocket[] = "/run/eplb/eplbd.sock";

std::string EnvironmentText(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& endpoint) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> checked,
                        InFile(source, wire::SplitEndpoints(endpoint)));
  return absl::StrJoin(checked, ",");
}

wire::TlsFiles FilledFrom(const wire::TlsFiles& more, wire::TlsFiles files) {
  if (files.ca.empty()) files.ca = more.ca;
  if (files.cert.empty()) files.cert = more.cert;
  if (files.key.empty()) files.key = more.key;
  if (files.server_name.empty()) files.server_name = more.server_name;
  return files;
}

// True for a socket that a daemon serves; a killed daemon leaves its socket. A socket that this
// user may not open counts as served, so that the error names it.
bool IsServed(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return false;
  path.copy(address.sun_path, path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool reached =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool served = reached || errno == EAGAIN || errno == EACCES;
  (void)close(probe);
  return served;
}

absl::StatusOr<std::string> WithoutConfig() {
  std::vector<std::string> sockets = {kServiceSocket};
  const std::string runtime = EnvironmentText("XDG_RUNTIME_DIR");
  if (!runtime.empty()) sockets.push_back(runtime + "/eplb/eplbd.sock");
  for (const std::string& socket : sockets) {
    if (IsServed(socket)) return absl::StrCat("unix:", socket);
  }
  return kDefaultEndpoint;
}

// Returns the address in the configuration file: that of the context that the flag, EPLB_CONTEXT or
// the file names, or the file's own without one. given: a flag or EPLB_ENDPOINT names the daemon,
// so that no context is needed.
absl::StatusOr<DaemonAddress> AddressInForce(const std::string& path, const std::string& context,
                                             bool given) {
  EPLB_ASSIGN_OR_RETURN(const CtlConfig config, ReadCtlConfig(path));
  std::string name = context.empty() ? EnvironmentText("EPLB_CONTEXT") : context;
  if (name.empty()) name = config.in_force;
  if (name.empty() || given) return config.address;
  EPLB_ASSIGN_OR_RETURN(Context found, FindContext(config, name));
  return std::move(found.address);
}

}  // namespace

std::string CtlConfigPath() {
  const char* const config_home = std::getenv("XDG_CONFIG_HOME");
  if (config_home != nullptr && *config_home != '\0') {
    return absl::StrCat(config_home, "/eplb/eplbctl.toml");
  }
  const char* const home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.config/eplb/eplbctl.toml");
}

absl::StatusOr<CtlConfig> ReadCtlConfig(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return CtlConfig{.path = path};
  }
  if (!text.ok()) return text.status();
  return ParseCtlConfig(path, *text);
}

absl::StatusOr<Context> FindContext(const CtlConfig& config, const std::string& name) {
  std::vector<std::string> names;
  for (const Context& context : config.contexts) {
    if (context.name == name) return context;
    names.push_back(context.name);
  }
  return NotFound(
      config.path, ": no context \"", Printable(name), "\", ",
      names.empty() ? "the file has none" : absl::StrCat("expected ", absl::StrJoin(names, ", ")),
      Suggestion(name, names));
}

std::string WithContextInForce(std::string_view text, const std::string& name) {
  std::string result = name.empty() ? "" : absl::StrCat("context = \"", name, "\"\n");
  bool in_tables = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string line(text.substr(begin, end - begin));
    begin = end;
    const size_t first = line.find_first_not_of(" \t");
    in_tables = in_tables || (first != std::string::npos && line[first] == '[');
    if (in_tables || !SetsContext(line)) result += line;
  }
  return result;
}

Output RunContextList(Format format) {
  EPLB_ASSIGN_OR_RETURN(const CtlConfig config, AsUsage(ReadCtlConfig(CtlConfigPath())));
  std::string text;
  if (format == Format::kJson) {
    text = absl::StrCat("{\"context\":", wire::JsonQuote(config.in_force), ",\"contexts\":[");
    for (const Context& context : config.contexts) {
      absl::StrAppend(&text, text.back() == '[' ? "" : ",",
                      "{\"name\":", wire::JsonQuote(context.name),
                      ",\"endpoint\":", wire::JsonQuote(context.address.endpoint),
                      ",\"tls\":", context.address.tls.enabled() ? "true" : "false",
                      ",\"in_force\":", context.name == config.in_force ? "true" : "false", "}");
    }
    return text + "]}\n";
  }
  size_t width = 0;
  for (const Context& context : config.contexts) width = std::max(width, context.name.size());
  for (const Context& context : config.contexts) {
    absl::StrAppend(&text, context.name == config.in_force ? "* " : "  ", Printable(context.name),
                    std::string(width - context.name.size() + 2, ' '),
                    Printable(context.address.endpoint),
                    context.address.tls.enabled() ? "  TLS" : "", "\n");
  }
  std::string message;
  if (config.contexts.empty()) {
    message = config.path + ": has no context";
  } else if (!config.in_force.empty()) {
    message = std::string(FindContext(config, config.in_force).status().message());
  }
  return {kOk, std::move(text), std::move(message)};
}

Output RunContextUse(const ContextUseOptions& options) {
  const std::string& name = options.name;
  if (name.empty() && !options.none) {
    return InvalidInput("no context is named, expected eplbctl context use NAME or --none");
  }
  const std::string path = CtlConfigPath();
  EPLB_ASSIGN_OR_RETURN(const CtlConfig config, AsUsage(ReadCtlConfig(path)));
  if (!name.empty()) EPLB_RETURN_IF_ERROR(FindContext(config, name).status());
  const std::string now = name.empty() ? "no context is" : absl::StrCat("context ", name, " is");
  if (options.dry_run) return absl::StrCat("would write ", path, ": ", now, " current\n");
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxConfigBytes);
  if (!text.ok() && !absl::IsNotFound(text.status())) return AsUsage(text.status());
  if (text.ok()) {
    const std::string changed = WithContextInForce(*text, name);
    const absl::StatusOr<CtlConfig> read = ParseCtlConfig(path, changed);
    if (!read.ok() || read->in_force != name) {
      return InvalidInput(path,
                          ": its form is none that this command can change; set context by hand");
    }
    EPLB_RETURN_IF_ERROR(WriteOutput(path, changed));
  }
  return absl::StrCat(now, " current\n");
}

void AddContext(const Flags& root) {
  const Flags context =
      root.AddGroup("context", "Manage the named daemons of the configuration file: list, use");
  auto [list, format] = AddCommand<Format>(
      context, "list", "List the contexts; * marks the current one", &RunContextList);
  AddFormat(list, format);
  list.SetFooter("Exit codes: 0 ok, 2 unusable configuration file.");

  auto [use, options] = AddCommand<ContextUseOptions>(
      context, "use", "Make a context the current one for later commands", &RunContextUse);
  use.Text("name", "NAME", options.name, "The context");
  use.Switch("--none", options.none, "Use no context afterwards").Excludes("name");
  use.Switch("--dry-run", options.dry_run, "Print what would be written, and write nothing");
  use.SetFooter("Exit codes: 0 ok, 1 the file cannot be written, 2 usage, 5 no such context.");
}

absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context) {
  const std::string path = CtlConfigPath();
  const std::string variable = EnvironmentText("EPLB_ENDPOINT");
  const bool given = !endpoint.empty() || (!variable.empty() && context.empty());
  absl::StatusOr<DaemonAddress> config = AddressInForce(path, context, given);
  // A broken file is no obstacle if a flag or EPLB_ENDPOINT names the daemon.
  if (!config.ok() && given) config = DaemonAddress();
  EPLB_RETURN_IF_ERROR(config.status());
  DaemonAddress address = {.tls = wire::WithEnvironment(tls)};
  // A context that was named brings its own identity; flags alone are above it.
  if (!context.empty() && !given) {
    address.tls = FilledFrom(address.tls, FilledFrom(config->tls, tls));
  } else if (!given || config->endpoint.empty()) {
    address.tls = FilledFrom(config->tls, address.tls);
  }
  if (!endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("--endpoint", endpoint));
  } else if (given) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("EPLB_ENDPOINT", variable));
  } else if (!config->endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked(path, config->endpoint));
  } else {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, WithoutConfig());
    // The sockets that a daemon opens by itself have no TLS, because the kernel names the peer.
    if (absl::StartsWith(address.endpoint, "unix:")) {
      if (!(tls.ca + tls.cert + tls.key + tls.server_name).empty()) {
        return InvalidInput(
            "--tls-ca, --tls-cert, --tls-key and --tls-server-name need --endpoint: "
            "without one the daemon is at ",
            address.endpoint, ", which has no TLS");
      }
      address.tls = {};
    }
  }
  return address;
}

}  // namespace eplb::cli
