// Copies a struct to and from the protobuf message that mirrors it, by one list of its fields.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include <google/protobuf/message.h>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/text.h"
#include "placement/digest.h"

namespace eplb::wire {

// A member of a struct and the field of the same meaning, by its name in the .proto file.
template <class Struct, class Value>
struct Field {
  constexpr Field(const char* field, Value Struct::*place, size_t most_bytes = kMaxText)
      : name(field), member(place), most(most_bytes) {}

  const char* name;
  Value Struct::*member;
  size_t most;  // bytes of a text, which is cut at either end
};

// A field that is not set if the member is `none`.
template <class Struct, class Value>
struct SparseField : Field<Struct, Value> {
  constexpr SparseField(const char* field, Value Struct::*place, Value value)
      : Field<Struct, Value>(field, place), none(value) {}

  Value none;
};

// Fields of a struct, a std::tuple of Field and SparseField. The conversion of a message
// specialises it.
template <class Struct>
inline constexpr auto kFields = std::tuple<>{};

// errors: InvalidArgument, beginning with `field`: above 2^63-1, above 2^31-1, not finite.
inline absl::StatusOr<int64_t> GetCount(const std::string& field, uint64_t value) {
  if (value <= uint64_t{std::numeric_limits<int64_t>::max()}) return static_cast<int64_t>(value);
  return InvalidInput(field, " is ", value, ", above 2^63-1");
}
inline absl::StatusOr<int32_t> GetSmall(const std::string& field, uint32_t value) {
  if (value <= uint32_t{std::numeric_limits<int32_t>::max()}) return static_cast<int32_t>(value);
  return InvalidInput(field, " is ", value, ", above 2^31-1");
}
inline absl::StatusOr<double> GetReal(const std::string& field, double value) {
  if (std::isfinite(value)) return value;
  return InvalidInput(field, " is not finite");
}

// errors: InvalidArgument, beginning with `field` and listing the values of the enumeration.
inline absl::StatusOr<int> KnownEnum(const std::string& field,
                                     const google::protobuf::EnumDescriptor& type, int number) {
  std::string known;
  for (int i = 0; i < type.value_count(); ++i) {
    if (absl::EndsWith(type.value(i)->name(), "UNSPECIFIED")) continue;
    if (type.value(i)->number() == number) return number;
    absl::StrAppend(&known, known.empty() ? "" : ", ", type.value(i)->name());
  }
  return InvalidInput(field, " is ", number, ", expected one of ", known);
}

template <class T>
struct ElementOf {};
template <class T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};
template <class T>
concept Repeated = requires {
  typename ElementOf<T>::Type;
};

// REQUIRES of these three: each message has the fields that kFields names, of a fitting type.
template <class Struct>
void WriteFields(const Struct& value, google::protobuf::Message* out);
// errors: InvalidArgument, naming the first field that is wrong: an integer above the range of its
// member, a number that is not finite, a digest that is not 32 bytes, a value that its enumeration
// does not have. prefix: precedes the names, "shape.".
template <class Struct>
absl::Status ReadFields(const google::protobuf::Message& in, Struct* out,
                        const std::string& prefix = {});

template <class Value>
void PutField(const Value& value, const char* name, size_t most, google::protobuf::Message* out) {
  const google::protobuf::FieldDescriptor* const field =
      out->GetDescriptor()->FindFieldByName(name);
  const google::protobuf::Reflection& fields = *out->GetReflection();
  if constexpr (std::is_same_v<Value, bool>) {
    fields.SetBool(out, field, value);
  } else if constexpr (std::is_same_v<Value, int32_t>) {
    fields.SetUInt32(out, field, static_cast<uint32_t>(value));
  } else if constexpr (std::is_integral_v<Value>) {
    fields.SetUInt64(out, field, static_cast<uint64_t>(value));
  } else if constexpr (std::is_same_v<Value, double>) {
    fields.SetDouble(out, field, FiniteOrZero(value));
  } else if constexpr (std::is_same_v<Value, absl::Time>) {
    fields.SetInt64(out, field, absl::ToUnixMicros(value));
  } else if constexpr (std::is_enum_v<Value>) {
    fields.SetEnumValue(out, field, static_cast<int>(value));
  } else if constexpr (std::is_same_v<Value, std::string>) {
    fields.SetString(out, field, Clipped(value, most));
  } else if constexpr (std::is_same_v<Value, Digest>) {
    fields.SetString(out, field, std::string(value.bytes.begin(), value.bytes.end()));
  } else if constexpr (std::is_same_v<Value, std::vector<int32_t>>) {
    for (const int32_t one : value) fields.AddUInt32(out, field, static_cast<uint32_t>(one));
  } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
    for (const int64_t one : value) fields.AddUInt64(out, field, static_cast<uint64_t>(one));
  } else if constexpr (Repeated<Value>) {
    for (const auto& one : value) WriteFields(one, fields.AddMessage(out, field));
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) PutField(*value, name, most, out);
  } else {
    WriteFields(value, fields.MutableMessage(out, field));
  }
}

// Moves a checked value to its member.
template <class Value>
absl::Status Take(absl::StatusOr<Value> checked, Value* value) {
  if (!checked.ok()) return checked.status();
  *value = *std::move(checked);
  return absl::OkStatus();
}

template <class Value>
absl::Status GetField(const google::protobuf::Message& in, const char* name,
                      const std::string& prefix, size_t most, Value* value) {
  const google::protobuf::FieldDescriptor* const field = in.GetDescriptor()->FindFieldByName(name);
  const google::protobuf::Reflection& fields = *in.GetReflection();
  const std::string place = prefix + name;
  if constexpr (std::is_same_v<Value, bool>) {
    *value = fields.GetBool(in, field);
  } else if constexpr (std::is_same_v<Value, int32_t>) {
    return Take(GetSmall(place, fields.GetUInt32(in, field)), value);
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    return Take(GetCount(place, fields.GetUInt64(in, field)), value);
  } else if constexpr (std::is_same_v<Value, uint64_t>) {
    *value = fields.GetUInt64(in, field);
  } else if constexpr (std::is_same_v<Value, double>) {
    return Take(GetReal(place, fields.GetDouble(in, field)), value);
  } else if constexpr (std::is_same_v<Value, absl::Time>) {
    *value = absl::FromUnixMicros(fields.GetInt64(in, field));
  } else if constexpr (std::is_enum_v<Value>) {
    const absl::StatusOr<int> number =
        KnownEnum(place, *field->enum_type(), fields.GetEnumValue(in, field));
    if (number.ok()) *value = static_cast<Value>(*number);
    return number.status();
  } else if constexpr (std::is_same_v<Value, std::string>) {
    *value = Clipped(fields.GetString(in, field), most);
  } else if constexpr (std::is_same_v<Value, Digest>) {
    const std::string bytes = fields.GetString(in, field);
    if (bytes.size() != value->bytes.size()) {
      return InvalidInput(place, " has ", bytes.size(), " bytes, expected 32");
    }
    std::copy(bytes.begin(), bytes.end(), value->bytes.begin());
  } else if constexpr (Repeated<Value>) {
    absl::Status status;
    value->resize(static_cast<size_t>(fields.FieldSize(in, field)));
    for (int i = 0; i < fields.FieldSize(in, field) && status.ok(); ++i) {
      auto* const one = &(*value)[static_cast<size_t>(i)];
      if constexpr (std::is_same_v<Value, std::vector<int32_t>>) {
        status = Take(GetSmall(place, fields.GetRepeatedUInt32(in, field, i)), one);
      } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
        status = Take(GetCount(place, fields.GetRepeatedUInt64(in, field, i)), one);
      } else {
        status = ReadFields(fields.GetRepeatedMessage(in, field, i), one, place + ".");
      }
    }
    return status;
  } else if constexpr (requires { value->has_value(); }) {
    if (fields.HasField(in, field)) return GetField(in, name, prefix, most, &value->emplace());
  } else {
    return ReadFields(fields.GetMessage(in, field), value, place + ".");
  }
  return absl::OkStatus();
}

template <class Struct>
void WriteFields(const Struct& value, google::protobuf::Message* out) {
  const auto put = [&](const auto& field) {
    if constexpr (requires { field.none; }) {
      if (value.*field.member == field.none) return;
    }
    PutField(value.*field.member, field.name, field.most, out);
  };
  std::apply([&](const auto&... field) { (put(field), ...); }, kFields<Struct>);
}

template <class Struct>
absl::Status ReadFields(const google::protobuf::Message& in, Struct* out,
                        const std::string& prefix) {
  absl::Status status;
  const auto get = [&](const auto& field) {
    if constexpr (requires { field.none; }) {
      out->*field.member = field.none;
      if (!in.GetReflection()->HasField(in, in.GetDescriptor()->FindFieldByName(field.name))) {
        return true;
      }
    }
    status = GetField(in, field.name, prefix, field.most, &(out->*field.member));
    return status.ok();
  };
  std::apply([&](const auto&... field) { (void)(get(field) && ...); }, kFields<Struct>);
  return status;
}

}  // namespace eplb::wire
