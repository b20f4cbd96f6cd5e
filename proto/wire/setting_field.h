// A protobuf field that people set by text: a key of the configuration, or a setting of a job. The
// option `setting` of the field describes its values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"

#include "base/value_range.h"

namespace google::protobuf {
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace eplb::v1 {
class Setting;
}  // namespace eplb::v1

namespace eplb::wire {

// A grammar of texts, by the name that the option gives it.
struct TextKind {
  std::string_view name;
  TextRange range;
};

struct SettingField {
  // path: of the table, "store.etcd", unless the option has another one. kinds: those that options
  // may name.
  SettingField(const google::protobuf::FieldDescriptor& described, std::string_view path,
               std::span<const TextKind> kinds);

  const google::protobuf::FieldDescriptor* field;
  const v1::Setting* option;
  std::string table;      // in the configuration: "migration"
  std::string name;       // in the table: "max_pause"
  std::string_view help;  // effect of the setting: sentences of at most 25 words
  std::variant<IntegerRange, NumberRange, DurationRange, WordRange, TextRange> range;

  std::string FullName() const { return table + "." + name; }
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;

  // Returns the value of the field in `message`, or its default.
  // errors: InvalidArgument, naming the field, for a number that no Scalar has.
  absl::StatusOr<Scalar> Get(const google::protobuf::Message& message) const;
  // REQUIRES: the scalar has the type that Get returns.
  void Set(const Scalar& value, google::protobuf::Message* message) const;
};

}  // namespace eplb::wire
