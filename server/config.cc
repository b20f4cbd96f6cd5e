#include "server/config.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/toml_text.h"
#include "server/config_identity.h"
#include "server/config_keys.h"

namespace eplb {
namespace {

constexpr std::string_view kPrefix = "EPLB_";
constexpr size_t kMaxFileBytes = size_t{1} << 20;

absl::Status At(const std::string& source, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
}

ConfigValue ValueOf(const toml::array& array) {
  ConfigValue value = {.kind = ConfigValue::Kind::kTexts, .text = "an array"};
  for (const toml::node& one : array) {
    const auto* text = one.as_string();
    if (text == nullptr) return {.kind = ConfigValue::Kind::kOther, .text = "an array"};
    value.texts.push_back(text->get());
  }
  return value;
}

ConfigValue ValueOf(const toml::node& node) {
  using Kind = ConfigValue::Kind;
  if (const auto* integer = node.as_integer()) {
    return {.kind = Kind::kInteger, .text = absl::StrCat(integer->get())};
  }
  if (const auto* real = node.as_floating_point()) {
    return {.kind = Kind::kReal, .text = absl::StrCat(real->get())};
  }
  if (const auto* text = node.as_string()) return {.kind = Kind::kText, .text = text->get()};
  if (const auto* flag = node.as_boolean()) {
    return {.kind = Kind::kOther, .text = flag->get() ? "true" : "false"};
  }
  if (const auto* array = node.as_array()) return ValueOf(*array);
  return {.kind = Kind::kOther, .text = "a date or time"};
}

// Tables are one level deep in every key but tls.identity, and two below "jobs", so this ends at
// the third level.
absl::Status ApplyTable(const std::string& file, const std::string& prefix,
                        const toml::table& table, DaemonConfig* config) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table();
        inner != nullptr && (prefix.empty() || prefix == "jobs.")) {
      EPLB_RETURN_IF_ERROR(ApplyTable(file, name + ".", *inner, config));
      continue;
    }
    if (const toml::table* rules = node.as_table(); rules != nullptr && name == "tls.identity") {
      EPLB_ASSIGN_OR_RETURN(config->tls.identities, ReadIdentityRules(file, *rules));
      continue;
    }
    const absl::Status status = SetConfigKey(name, ValueOf(node), config);
    if (!status.ok()) return At(absl::StrCat(file, ":", node.source().begin.line), status);
  }
  return absl::OkStatus();
}

absl::Status ApplyFile(const std::string& file, DaemonConfig* config) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be opened"));
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.fail() && !stream.eof())) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read as a file"));
  }
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": larger than 1 MiB"));
  }
  EPLB_ASSIGN_OR_RETURN(const toml::table table, wire::ParseToml(file, text));
  return ApplyTable(file, "", table, config);
}

// EPLB_POLICY_NAME for policy.name.
std::string VariableOf(std::string_view key) {
  std::string name = absl::StrCat(std::string(kPrefix), absl::AsciiStrToUpper(std::string(key)));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

absl::Status ApplyVariable(const std::string& variable, const std::string& value,
                           DaemonConfig* config) {
  bool known_table = false;
  for (const ConfigKey& key : ConfigKeys()) {
    if (VariableOf(key.name) == variable) {
      const absl::Status status = SetConfigKey(key.name, {.text = value}, config);
      return status.ok() ? status : At(variable, status);
    }
    const std::string table = VariableOf(key.name.substr(0, key.name.find('.') + 1));
    known_table = known_table || variable.rfind(table, 0) == 0;
  }
  if (!known_table) return absl::OkStatus();  // of another program of ours, e.g. EPLB_ENDPOINT
  const size_t end_of_table = variable.find('_', kPrefix.size());
  std::string name = absl::AsciiStrToLower(variable.substr(kPrefix.size()));
  name[end_of_table - kPrefix.size()] = '.';
  return At(variable, SetConfigKey(name, {.text = value}, config));
}

// The files of [tls] make sense together only.
absl::Status CheckTls(const TlsOptions& tls) {
  const std::pair<const char*, const std::string*> files[] = {
      {"tls.cert", &tls.cert}, {"tls.key", &tls.key}, {"tls.ca", &tls.ca}};
  const auto is_set = [](const auto& file) { return !file.second->empty(); };
  const auto set = std::find_if(std::begin(files), std::end(files), is_set);
  const auto missing = std::find_if_not(std::begin(files), std::end(files), is_set);
  if (set != std::end(files) && missing != std::end(files)) {
    return absl::InvalidArgumentError(
        absl::StrCat(set->first, " is set and ", missing->first, " is not; TLS needs all three"));
  }
  if (set == std::end(files) && !tls.identities.empty()) {
    return absl::InvalidArgumentError("tls.identity has rules, and tls.cert is not set");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DaemonConfig> LoadConfig(const ConfigSources& sources) {
  DaemonConfig config;
  if (!sources.file.empty()) EPLB_RETURN_IF_ERROR(ApplyFile(sources.file, &config));
  for (const auto& [variable, value] : sources.environment) {
    if (variable.rfind(kPrefix, 0) == 0) {
      EPLB_RETURN_IF_ERROR(ApplyVariable(variable, value, &config));
    }
  }
  for (const auto& [key, value] : sources.flags) {
    const absl::Status status = SetConfigKey(key, {.text = value}, &config);
    if (!status.ok()) return At("command line", status);
  }
  EPLB_RETURN_IF_ERROR(CheckTls(config.tls));
  return config;
}

absl::StatusOr<std::string> DefaultStorePath(
    const std::vector<std::pair<std::string, std::string>>& environment) {
  std::string home;
  for (const auto& [variable, value] : environment) {
    if (variable == "XDG_STATE_HOME" && !value.empty()) return value + "/eplb/eplbd.db";
    if (variable == "HOME" && !value.empty()) home = value;
  }
  if (!home.empty()) return home + "/.local/state/eplb/eplbd.db";
  return absl::FailedPreconditionError(
      "no place for the store: neither XDG_STATE_HOME nor HOME is set, give --store PATH or "
      "--store memory");
}

}  // namespace eplb
