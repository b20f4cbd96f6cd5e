#include "server/config/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/suggestion.h"
#include "base/toml_text.h"
#include "server/config/config_identity.h"
#include "server/config/config_keys.h"
#include "server/config/config_names.h"

namespace eplb {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

absl::Status Unreadable(const std::string& file, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", std::string(why)));
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return Unreadable(file, absl::StrCat("cannot be opened: ", std::strerror(errno)));
  }
  const absl::Cleanup close_file = [descriptor] { (void)close(descriptor); };
  struct stat info = {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    return Unreadable(file, S_ISDIR(info.st_mode) ? "cannot be read: it is a directory"
                                                  : "cannot be read: it is not a regular file");
  }
  std::string text(kMaxFileBytes + 1, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(file, absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  if (done > kMaxFileBytes) return Unreadable(file, "larger than 1 MiB");
  text.resize(done);
  return text;
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
    return {.kind = Kind::kReal, .text = ValueText(real->get())};
  }
  if (const auto* text = node.as_string()) return {.kind = Kind::kText, .text = text->get()};
  if (const auto* flag = node.as_boolean()) {
    return {.kind = Kind::kOther, .text = flag->get() ? "true" : "false"};
  }
  if (const auto* array = node.as_array()) return ValueOf(*array);
  return {.kind = Kind::kOther, .text = node.is_table() ? "a table" : "a date or time"};
}

// A table may be empty, but not unknown: its keys cannot tell then.
absl::Status CheckTable(std::string_view name) {
  std::set<std::string> tables = {"jobs"};
  for (const ConfigKey& key : ConfigKeys()) {
    tables.emplace(key.name.substr(0, key.name.find('.')));
  }
  if (tables.contains(std::string(name))) return absl::OkStatus();
  const std::vector<std::string> known(tables.begin(), tables.end());
  return absl::InvalidArgumentError(
      absl::StrCat(OnOneLine(name), ": unknown table", Suggestion(name, known)));
}

std::string Place(const std::string& file, const toml::node& node) {
  return absl::StrCat(file, ":", node.source().begin.line);
}

absl::Status At(const std::string& file, const toml::node& node, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(Place(file, node), ": ", status.message()));
}

absl::Status ApplyKey(const std::string& file, const std::string& name, const toml::node& node,
                      DaemonConfig* config) {
  const toml::table* const table = node.as_table();
  if (table == nullptr || name != "tls.identity") {
    return At(file, node, SetConfigKeyFrom(Place(file, node), name, ValueOf(node), config));
  }
  EPLB_ASSIGN_OR_RETURN(config->tls.identities, ReadIdentityRules(file, *table));
  config->origins[name] = {.source = Place(file, node), .given = "a table"};
  return absl::OkStatus();
}

absl::Status ApplyJobs(const std::string& file, const toml::table& jobs, DaemonConfig* config) {
  for (const auto& [job, settings] : jobs) {
    const toml::table* const table = settings.as_table();
    const std::string name = absl::StrCat("jobs.", std::string(job.str()));
    if (table == nullptr) {
      EPLB_RETURN_IF_ERROR(ApplyKey(file, name, settings, config));
      continue;
    }
    EPLB_RETURN_IF_ERROR(At(file, settings, CheckJobName(job.str())));
    for (const auto& [key, node] : *table) {
      EPLB_RETURN_IF_ERROR(
          ApplyKey(file, absl::StrCat(name, ".", std::string(key.str())), node, config));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplyConfigFile(const std::string& file, DaemonConfig* config) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  EPLB_ASSIGN_OR_RETURN(const toml::table root, wire::ParseToml(file, text));
  for (const auto& [name, node] : root) {
    const std::string table_name(name.str());
    const toml::table* const table = node.as_table();
    if (table == nullptr) {
      EPLB_RETURN_IF_ERROR(ApplyKey(file, table_name, node, config));
    } else if (table_name == "jobs") {
      EPLB_RETURN_IF_ERROR(ApplyJobs(file, *table, config));
    } else if (table->empty()) {
      EPLB_RETURN_IF_ERROR(At(file, node, CheckTable(table_name)));
    } else {
      for (const auto& [key, inner] : *table) {
        EPLB_RETURN_IF_ERROR(
            ApplyKey(file, absl::StrCat(table_name, ".", std::string(key.str())), inner, config));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace eplb
