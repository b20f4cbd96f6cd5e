#include "proto/wire/message_json.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/foreign_text.h"
#include "base/text.h"

#include "eplb/v1/query.pb.h"
#include "eplb/v1/types.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json TextOf(const FieldDescriptor& field, const std::string& value) {
  return field.type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(value) : value;
}

// One value of the field, which is repeated when `index` is not negative.
Json ValueOf(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& values = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? values.GetInt32(message, &field)
                 : values.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? values.GetInt64(message, &field)
                 : values.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? values.GetUInt32(message, &field)
                 : values.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? values.GetUInt64(message, &field)
                 : values.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return FiniteOrZero(one ? values.GetDouble(message, &field)
                              : values.GetRepeatedDouble(message, &field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FiniteOrZero(one ? values.GetFloat(message, &field)
                              : values.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? values.GetBool(message, &field) : values.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(*field.enum_type(),
                      one ? values.GetEnumValue(message, &field)
                          : values.GetRepeatedEnumValue(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return TextOf(field, one ? values.GetString(message, &field)
                               : values.GetRepeatedString(message, &field, index));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return ToJson(one ? values.GetMessage(message, &field)
                    : values.GetRepeatedMessage(message, &field, index));
}

Json ListOf(const Message& message, const FieldDescriptor& field) {
  Json list = Json::array();
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) list.push_back(ValueOf(message, field, i));
  if (message.GetDescriptor() != v1::JobStatus::descriptor() ||
      field.number() != v1::JobStatus::kLayerBalancednessFieldNumber) {
    return list;
  }
  for (Json& layer : list) {
    if (layer == 0) layer = nullptr;  // it has no tokens
  }
  return list;
}

Json SettingsOf(const v1::TransportInfo& transport) {
  Json settings = Json::object();
  for (const auto& setting : transport.settings()) settings[setting.name()] = setting.value();
  return settings;
}

void AddShape(const v1::Shape& shape, Json& json) {
  json["num_layers"] = shape.num_layers();
  json["num_logical_experts"] = shape.num_experts();
  json["num_slots"] = shape.num_slots();
  json["num_gpus"] = shape.num_gpus();
  json["num_nodes"] = shape.num_nodes();
  json["num_groups"] = shape.num_groups();
}

void AddField(const Message& message, const FieldDescriptor& field, Json& json) {
  const Reflection& values = *message.GetReflection();
  if (field.message_type() == v1::Shape::descriptor()) {
    AddShape(dynamic_cast<const v1::Shape&>(values.GetMessage(message, &field)), json);
  } else {
    json[field.name()] = ToJson(message, field);
  }
  if (field.name() == "unix_micros") json["time"] = TimeText(values.GetInt64(message, &field));
}

// Returns the length of the prefix that all names of the type share: 10 for JOB_STATE_.
size_t PrefixLength(const google::protobuf::EnumDescriptor& type) {
  constexpr absl::string_view kZero = "UNSPECIFIED";
  return type.value(0)->name().size() - kZero.size();
}

}  // namespace

nlohmann::ordered_json ToJson(const Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  Json json = Json::object();
  for (int i = 0; i < type.field_count(); ++i) AddField(message, *type.field(i), json);
  return json;
}

nlohmann::ordered_json ToJson(const Message& message, const FieldDescriptor& field) {
  if (field.message_type() == v1::TransportInfo::Setting::descriptor()) {
    return SettingsOf(dynamic_cast<const v1::TransportInfo&>(message));
  }
  if (field.is_repeated()) return ListOf(message, field);
  const bool absent = field.has_presence() && !message.GetReflection()->HasField(message, &field);
  return absent ? Json() : ValueOf(message, field, -1);
}

std::string DumpJson(const nlohmann::ordered_json& json, int indent) {
  return EscapedJson(json.dump(indent, ' ', false, Json::error_handler_t::replace));
}

std::string ToJsonText(const Message& message) { return DumpJson(ToJson(message)); }

std::string EnumText(const google::protobuf::EnumDescriptor& type, int number) {
  const google::protobuf::EnumValueDescriptor* const value = type.FindValueByNumber(number);
  if (value == nullptr) return absl::StrCat(number);
  if (number == 0) return "";
  std::string name = value->name().substr(PrefixLength(type));
  if (&type != v1::JobState_descriptor()) absl::AsciiStrToLower(&name);
  return name;
}

std::string TimeText(int64_t unix_micros) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMicros(unix_micros),
                          absl::UTCTimeZone());
}

}  // namespace eplb::wire
