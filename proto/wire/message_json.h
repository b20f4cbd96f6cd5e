// The JSON of messages, one form for eplbctl -o json and for HTTP.
#pragma once

#include <cstdint>
#include <string>

#include <google/protobuf/generated_enum_reflection.h>
#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace eplb::wire {

// An object with every field: its name in the .proto is the key, in the order of declaration.
// Integers are numbers, bytes hexadecimal, a number that is not finite 0, an enum its EnumText, and
// an optional field that is not set null. Three things have a form of their own: "time" follows
// "unix_micros"; the fields of a Shape stand in the object around it, with experts as
// "num_logical_experts"; the settings of a transport are an object. cost: linear.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);
// The value of one field, as the object above has it. REQUIRES: it is no Shape.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message,
                              const google::protobuf::FieldDescriptor& field);

// Returns the text of `json`: one line without its end, or indented by `indent` spaces. Bytes that
// are not UTF-8 become U+FFFD; characters that Printable would replace are escaped.
std::string DumpJson(const nlohmann::ordered_json& json, int indent = -1);
// DumpJson of ToJson.
std::string ToJsonText(const google::protobuf::Message& message);

// "IDLE", "lost", "committed": the value's name without the name of its type, in lower case but for
// the states of a job. Empty for _UNSPECIFIED; the number for a value that this build does not
// know.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int number);
template <class Enum>
std::string EnumText(Enum value) {
  return EnumText(*google::protobuf::GetEnumDescriptor<Enum>(), static_cast<int>(value));
}

// "2026-11-21T10:02:03.123Z".
std::string TimeText(int64_t unix_micros);

}  // namespace eplb::wire
