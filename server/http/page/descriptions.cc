// Writes what follows from the options of messages: the OpenAPI description that the daemon serves,
// which adds the schemas of messages to the paths that are written by hand, and the columns of the
// web page's tables.
//   eplb_descriptions PATHS.json OPENAPI.json FIGURES.js
#include <fstream>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/strip.h"

#include "proto/wire/message_json.h"

#include "eplb/v1/options.pb.h"
#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

constexpr char kTimePattern[] =
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z$";

// "Job" of JobStatus.
std::string NameOf(const Descriptor& type) {
  absl::string_view name = type.name();
  if (!absl::ConsumeSuffix(&name, "Status") && !absl::ConsumeSuffix(&name, "Info")) {
    absl::ConsumePrefix(&name, "Job");
  }
  return std::string(name);
}

Json OneOf(const google::protobuf::EnumDescriptor& type) {
  Json names = Json::array();
  for (int i = 0; i < type.value_count(); ++i)
    names.push_back(wire::EnumText(type, type.value(i)->number()));
  return {{"type", "string"}, {"enum", names}};
}

// Schema of one value. Every field of the current settings is set.
Json ValueSchema(const FieldDescriptor& field) {
  Json schema;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_ENUM:
      return OneOf(*field.enum_type());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      schema["$ref"] = "#/components/schemas/" + NameOf(*field.message_type());
      if (field.is_repeated()) return schema;
      return {{"anyOf", {schema, {{"type", "null"}}}}};
    case FieldDescriptor::CPPTYPE_STRING:
      schema = {{"type", "string"}};
      if (field.type() == FieldDescriptor::TYPE_BYTES) schema["pattern"] = "^([0-9a-f]{64})?$";
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      schema = {{"type", "number"}, {"minimum", 0}};
      break;
    default:
      schema = {{"type", "integer"}, {"minimum", 0}};
  }
  const bool is_setting = field.containing_type() == v1::PolicySettings::descriptor();
  if (field.has_presence() && !is_setting) schema["type"] = {schema["type"], "null"};
  return schema;
}

// Adds the values of a setting.
void AddValues(const v1::Setting& setting, Json& schema) {
  for (const std::string& word : setting.words()) schema["enum"].push_back(word);
  if (setting.high() == 0) return;
  const auto bound = [is_integer = schema["type"] == "integer"](double value) {
    return is_integer ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  schema["minimum"] = bound(setting.low());
  schema["maximum"] = bound(setting.high());
}

Json SchemaOf(const FieldDescriptor& field) {
  const google::protobuf::FieldOptions& options = field.options();
  const v1::Setting& setting = options.GetExtension(v1::setting);
  Json schema = ValueSchema(field);
  AddValues(setting, schema);
  if (field.message_type() == v1::TransportInfo::Setting::descriptor()) {
    schema = {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
  } else {
    const std::string& patch = options.GetExtension(v1::schema);
    if (!patch.empty()) schema.merge_patch(Json::parse(patch));
    if (field.is_repeated()) schema = {{"type", "array"}, {"items", std::move(schema)}};
  }
  std::string description = options.GetExtension(v1::help);
  if (!setting.kind().empty() && !setting.note().empty()) description += " " + setting.note();
  schema["description"] = std::move(description);
  return schema;
}

// The keys are those of wire::ToJson.
void AddProperties(const Descriptor& type, Json& properties) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.message_type() == v1::Shape::descriptor()) {
      AddProperties(*field.message_type(), properties);
      continue;
    }
    const bool is_experts = field.full_name() == "eplb.v1.Shape.num_experts";
    properties[is_experts ? "num_logical_experts" : field.name()] = SchemaOf(field);
    if (field.name() == "unix_micros" || field.name() == "completed_unix_micros") {
      properties[field.name() == "unix_micros" ? "time" : "completed"] = {
          {"type", "string"}, {"pattern", kTimePattern}, {"description", "The same, UTC."}};
    }
  }
}

// Adds the schema of a message and those of the messages inside it.
void AddSchemas(const Descriptor& type, Json& schemas) {
  Json properties;
  AddProperties(type, properties);
  Json keys = Json::array();
  for (const auto& [key, schema] : properties.items()) keys.push_back(key);
  schemas[NameOf(type)] = {{"type", "object"},
                           {"additionalProperties", false},
                           {"description", type.options().GetExtension(v1::about)},
                           {"required", std::move(keys)},
                           {"properties", std::move(properties)}};
  for (int i = 0; i < type.field_count(); ++i) {
    const Descriptor* const inner = type.field(i)->message_type();
    if (inner == nullptr || inner == v1::Shape::descriptor() ||
        inner == v1::TransportInfo::Setting::descriptor()) {
      continue;
    }
    AddSchemas(*inner, schemas);
  }
}

Json ColumnJson(const FieldDescriptor& field, const v1::Column& column) {
  return {{"key", field.name()},
          {"label", column.label()},
          {"unit", v1::Unit_Name(column.unit())},
          {"to", column.to()},
          {"error", column.error()},
          {"zero_is_none", column.zero_is_none()},
          {"digits", column.digits()},
          {"number", field.cpp_type() <= FieldDescriptor::CPPTYPE_FLOAT},
          {"help", field.options().GetExtension(v1::help)}};
}

// Returns the columns of each message that has any, by place; those of lists alone are last.
Json Figures() {
  const google::protobuf::FileDescriptor& file = *v1::Plan::descriptor()->file();
  Json figures;
  for (int i = 0; i < file.message_type_count(); ++i) {
    const Descriptor& type = *file.message_type(i);
    std::multimap<uint32_t, Json> columns;
    for (int k = 0; k < type.field_count(); ++k) {
      const FieldDescriptor& field = *type.field(k);
      if (!field.options().HasExtension(v1::column)) continue;
      const v1::Column& column = field.options().GetExtension(v1::column);
      columns.emplace(column.place() - 1, ColumnJson(field, column));  // 0 becomes the largest
    }
    for (auto& [place, column] : columns) figures[type.name()].push_back(std::move(column));
  }
  return figures;
}

}  // namespace
}  // namespace eplb

// An exception ends the build with its text.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: eplb_descriptions PATHS.json OPENAPI.json FIGURES.js\n";
    return 2;
  }
  std::ifstream paths(argv[1]);
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(paths);
  for (const auto* type : {eplb::v1::Refusal::descriptor(), eplb::v1::JobStatus::descriptor(),
                           eplb::v1::JobEvent::descriptor(), eplb::v1::Window::descriptor()}) {
    eplb::AddSchemas(*type, document["components"]["schemas"]);
  }
  std::ofstream openapi(argv[2]);
  openapi << document.dump(2) << "\n";
  std::ofstream figures(argv[3]);
  figures << "// Columns of messages, generated by server/http/page/descriptions.cc.\n"
          << "\"use strict\";\neplb.figures = " << eplb::Figures().dump() << ";\n";
  return openapi.flush() && figures.flush() ? 0 : 1;
}
