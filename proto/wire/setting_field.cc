// Reads the option `setting` of a field, and converts between the field and a scalar.
#include "proto/wire/setting_field.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/fields.h"

#include "eplb/v1/options.pb.h"

namespace eplb::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr std::string_view kSeconds = "_seconds";
constexpr double kMaxSeconds = 1e8;  // above what any setting allows

bool IsTime(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && field.name().ends_with(kSeconds);
}

std::string NameOf(const FieldDescriptor& field) {
  return field.name().substr(0, field.name().size() - (IsTime(field) ? kSeconds.size() : 0));
}

std::optional<std::string> FilledText(const WrittenValue& written) {
  return written.is_text() && !written.text.empty() ? std::optional(written.text) : std::nullopt;
}

decltype(SettingField::range) RangeOf(const FieldDescriptor& field, const v1::Setting& option,
                                      std::span<const TextKind> kinds) {
  if (!option.kind().empty()) {
    return std::ranges::find(kinds, std::string_view(option.kind()), &TextKind::name)->range;
  }
  if (!option.words().empty()) {
    WordRange range = {};
    std::copy(option.words().begin(), option.words().end(), range.words.begin());
    return range;
  }
  if (!option.expected().empty()) return TextRange{&FilledText, option.expected()};
  if (IsTime(field)) {
    return DurationRange{absl::Seconds(option.low()), absl::Seconds(option.high()), option.note()};
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    return NumberRange{option.low(), option.high(), option.note()};
  }
  return IntegerRange{static_cast<int64_t>(option.low()), static_cast<int64_t>(option.high()),
                      option.note()};
}

Scalar Clamped(uint64_t value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(value, kMost));
}

}  // namespace

SettingField::SettingField(const FieldDescriptor& described, std::string_view path,
                           std::span<const TextKind> kinds)
    : field(&described),
      option(&described.options().GetExtension(v1::setting)),
      help(described.options().GetExtension(v1::help)),
      range(RangeOf(described, *option, kinds)) {
  const std::string full = absl::StrCat(
      option->table().empty() ? std::string(path) : option->table(), ".", NameOf(described));
  table = full.substr(0, full.find('.'));
  name = full.substr(table.size() + 1);
}

std::optional<Scalar> SettingField::Read(const WrittenValue& written) const {
  return std::visit([&](const auto& each) { return each.Read(written); }, range);
}

bool SettingField::Holds(const Scalar& value) const {
  return std::visit([&](const auto& each) { return each.Holds(value); }, range);
}

std::string SettingField::Expected() const {
  return std::visit([](const auto& each) { return each.Expected(); }, range);
}

absl::StatusOr<Scalar> SettingField::Get(const Message& message) const {
  const Reflection& values = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return Scalar(values.GetString(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return Scalar(values.GetBool(message, field) ? "true" : "false");
    case FieldDescriptor::CPPTYPE_INT32:
      return Scalar(int64_t{values.GetInt32(message, field)});
    case FieldDescriptor::CPPTYPE_UINT32:
      return GetSmall(field->name(), values.GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return Clamped(values.GetUInt64(message, field));
    default:
      break;
  }
  EPLB_ASSIGN_OR_RETURN(const double number,
                        GetReal(field->name(), values.GetDouble(message, field)));
  if (!IsTime(*field)) return Scalar(number);
  if (std::abs(number) > kMaxSeconds) return InvalidInput(field->name(), " is out of range");
  return Scalar(absl::Seconds(number));
}

void SettingField::Set(const Scalar& value, Message* message) const {
  const Reflection& values = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return values.SetString(message, field, std::get<std::string>(value));
    case FieldDescriptor::CPPTYPE_BOOL:
      return values.SetBool(message, field, std::get<std::string>(value) == "true");
    case FieldDescriptor::CPPTYPE_INT32:
      return values.SetInt32(message, field, FromScalar<int32_t>(value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return values.SetUInt32(message, field, FromScalar<uint32_t>(value));
    case FieldDescriptor::CPPTYPE_UINT64:
      return values.SetUInt64(message, field, FromScalar<uint64_t>(value));
    default:
      break;
  }
  const auto* time = std::get_if<absl::Duration>(&value);
  values.SetDouble(message, field,
                   time == nullptr ? std::get<double>(value) : absl::ToDoubleSeconds(*time));
}

}  // namespace eplb::wire
