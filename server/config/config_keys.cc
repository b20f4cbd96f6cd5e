// The keys by their fields, and how one is found and set.
#include "server/config/config_keys.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "proto/wire/messages.h"
#include "proto/wire/names.h"
#include "proto/wire/settings.h"
#include "server/config/config_values.h"

namespace eplb {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Keys = std::vector<ConfigKey>;
using Tables = std::vector<const FieldDescriptor*>;

constexpr std::string_view kJobs = "jobs.";

// Adds the keys of a table, and those of the tables in it. path: its name, "store.etcd".
// NOLINTNEXTLINE(misc-no-recursion): as deep as the tables of v1.Configuration
void AddKeys(const google::protobuf::Descriptor& type, const std::string& path,
             const Tables& tables, Keys* keys) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto* const inner = field.message_type();
    if (inner == nullptr) {
      keys->push_back({{field, path, ConfigTextKinds()}, tables});
      continue;
    }
    if (field.is_map()) continue;  // settings by job
    Tables way = tables;
    way.push_back(&field);
    if (inner != v1::PolicySettings::descriptor()) {
      AddKeys(*inner, absl::StrCat(path, path.empty() ? "" : ".", field.name()), way, keys);
      continue;
    }
    for (const wire::SettingRow& row : wire::SettingRows()) keys->push_back({row, way});
  }
}

Keys AllKeys() {
  Keys keys;
  AddKeys(*v1::Configuration::descriptor(), "", {}, &keys);
  return keys;
}

const ConfigKey* FindKey(std::string_view name) {
  const auto found = std::ranges::find(ConfigKeys(), name, &ConfigKey::FullName);
  return found == ConfigKeys().end() ? nullptr : &*found;
}

absl::Status UnknownKey(std::string_view name) {
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) known.push_back(key.FullName());
  return InvalidInput(Clipped(name), ": unknown key", Suggestion(name, known));
}

absl::Status Unexpected(std::string_view name, const WrittenValue& value,
                        const std::string& expected) {
  return InvalidInput(Clipped(name), " = ", Clipped(value.text), ": expected ", expected);
}

absl::Status SetJobKey(std::string_view name, const WrittenValue& value, DaemonConfig* config) {
  const size_t dot = name.rfind('.');
  const std::span<const wire::SettingRow> rows = wire::SettingRows();
  const auto row = std::ranges::find(rows, name.substr(dot + 1), &wire::SettingRow::name);
  if (dot <= kJobs.size() || row == rows.end()) {
    std::string known;
    for (const wire::SettingRow& one : rows) absl::StrAppend(&known, " ", one.name);
    return InvalidInput(Clipped(name), ": expected jobs.NAME.KEY with KEY one of", known);
  }
  const std::string job(name.substr(kJobs.size(), dot - kJobs.size()));
  EPLB_RETURN_IF_ERROR(CheckJobName(job));
  const std::optional<Scalar> read = row->Read(value);
  if (!read) return Unexpected(name, value, row->Expected());
  row->Set(*read, &(*config->keys.mutable_jobs())[job]);
  return absl::OkStatus();
}

}  // namespace

Scalar ConfigKey::Get(const DaemonConfig& config) const {
  const Message* message = &config.keys;
  for (const auto* one : tables) message = &message->GetReflection()->GetMessage(*message, one);
  return SettingField::Get(*message).value();
}

void ConfigKey::Set(const Scalar& value, DaemonConfig* config) const {
  Message* message = &config->keys;
  for (const auto* one : tables) message = message->GetReflection()->MutableMessage(message, one);
  SettingField::Set(value, message);
}

bool ConfigKey::of_jobs() const {
  return field->containing_type() == v1::PolicySettings::descriptor();
}

std::span<const ConfigKey> ConfigKeys() {
  static const auto& keys = *new Keys(AllKeys());
  return keys;
}

absl::Status SetConfigKey(std::string_view name, const WrittenValue& value, DaemonConfig* config) {
  if (name.substr(0, kJobs.size()) == kJobs) return SetJobKey(name, value, config);
  const ConfigKey* const key = FindKey(name);
  if (key == nullptr) return UnknownKey(name);
  const std::optional<Scalar> read = key->Read(value);
  if (!read) return Unexpected(name, value, key->Expected());
  key->Set(*read, config);
  return absl::OkStatus();
}

absl::Status SetConfigKeyFrom(const std::string& source, std::string_view name,
                              const WrittenValue& value, DaemonConfig* config) {
  EPLB_RETURN_IF_ERROR(SetConfigKey(name, value, config));
  config->origins[std::string(name)] = {.source = source, .given = value.text};
  return absl::OkStatus();
}

std::string VariableOf(std::string_view key) {
  std::string name = absl::StrCat("EPLB_", absl::AsciiStrToUpper(std::string(key)));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

absl::Status CheckJobName(std::string_view name) {
  if (wire::CheckPlainName("job", name).ok()) return absl::OkStatus();
  return InvalidInput("jobs.\"", Clipped(name), "\": expected a job's name, 1..",
                      wire::kMaxNameLength, " letters, digits, '.', '_' and '-'");
}

}  // namespace eplb
