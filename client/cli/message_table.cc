#include "client/cli/message_table.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "base/text.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/options.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

constexpr int kWide = 100;  // columns of a terminal in which times have their year and seconds

// How much room a value has.
struct Room {
  bool wide = true;
  int most_text = 200;  // columns of a text
};

struct ShownField {
  const FieldDescriptor* field;
  v1::Column column;
};

// Fields with the option, by place; those of lists alone are last.
std::vector<ShownField> ShownFields(const Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  std::vector<ShownField> shown;
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& options = type.field(i)->options();
    if (options.HasExtension(v1::column)) {
      shown.push_back({type.field(i), options.GetExtension(v1::column)});
    }
  }
  std::ranges::stable_sort(shown, {}, [](const ShownField& one) {
    return one.column.place() - uint32_t{1};  // 0 becomes the largest
  });
  return shown;
}

std::string NumberText(const Json& value, const v1::Column& column, const Room& room) {
  const char* const format = room.wide ? "%Y-%m-%d %H:%M:%S" : "%m-%d %H:%M";
  const auto digits = [&column](int usual) {
    return column.digits() == 0 ? usual : static_cast<int>(column.digits());
  };
  switch (column.unit()) {
    case v1::COUNT:
      return GroupDigits(value.dump());
    case v1::RATIO:
      return absl::StrFormat("%.*f", digits(3), value.get<double>());
    case v1::PERCENT:
      return absl::StrFormat("%.*f %%", digits(1), 100 * value.get<double>());
    case v1::SECONDS:
      return Seconds(value.get<double>());
    case v1::BYTES:
      return BytesText(value.get<int64_t>());
    case v1::UNIX_MICROS:
      return absl::FormatTime(format, absl::FromUnixMicros(value.get<int64_t>()),
                              absl::UTCTimeZone());
    default:
      return value.is_number_float() ? absl::StrFormat("%.4g", value.get<double>()) : value.dump();
  }
}

// Empty: there is no value. A message is its name.
std::string ValueText(const Json& value, const v1::Column& column, const Room& room) {
  if (value.is_null()) return "";
  if (value.is_object()) return ValueText(value["name"], column, room);
  if (value.is_boolean()) return value.get<bool>() ? "*" : "";
  if (value.is_string()) return Shortened(Printable(value.get<std::string>()), room.most_text);
  if (value.is_array()) {
    std::vector<std::string> texts;
    for (const Json& each : value) texts.push_back(ValueText(each, column, room));
    return absl::StrJoin(texts, ",");
  }
  const bool zero_is_none =
      column.zero_is_none() || column.unit() == v1::RATIO || column.unit() == v1::UNIX_MICROS;
  return zero_is_none && value == 0 ? "" : NumberText(value, column, room);
}

std::string FieldText(const Message& message, const ShownField& shown, const CellWords& words,
                      const Room& room) {
  const auto own = words.find(shown.field->name());
  if (own != words.end()) return own->second(message);
  const auto value_of = [&message](const std::string& name) {
    return wire::ToJson(message, *message.GetDescriptor()->FindFieldByName(name));
  };
  const v1::Column& column = shown.column;
  const Json value = value_of(shown.field->name());
  std::string text = ValueText(value, column, room);
  if (text.empty()) return text;
  if (!column.to().empty()) {
    const Json last = value_of(column.to());
    if (last > value) absl::StrAppend(&text, "..", ValueText(last, column, room));
  }
  if (!column.error().empty()) {
    const Json error = value_of(column.error());
    if (!error.is_null()) absl::StrAppend(&text, " +- ", NumberText(error, column, room));
  }
  return text;
}

// Numbers are aligned to the right.
std::string HeadingOf(const ShownField& shown) {
  const bool right = shown.field->cpp_type() <= FieldDescriptor::CPPTYPE_FLOAT &&
                     shown.column.unit() != v1::UNIX_MICROS;
  return absl::StrCat(right ? ">" : "", shown.column.label());
}

}  // namespace

Table MessageTable(const std::vector<const Message*>& rows, const Terminal& terminal,
                   const CellWords& words) {
  Table table({});
  if (rows.empty()) return table;
  table.rows.resize(rows.size());
  std::vector<std::pair<uint32_t, std::string>> dropped;
  for (const ShownField& shown : ShownFields(*rows.front())) {
    if (shown.column.place() == 0) continue;
    const Room room{.wide = terminal.width >= kWide, .most_text = kMostText};
    std::vector<std::string> cells(rows.size());
    std::ranges::transform(rows, cells.begin(),
                           [&](const Message* row) { return FieldText(*row, shown, words, room); });
    if (std::ranges::all_of(cells, &std::string::empty)) continue;
    const bool is_mark = shown.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    table.AddColumn(HeadingOf(shown));
    for (size_t i = 0; i < rows.size(); ++i) {
      table.rows[i].push_back(OrDash(is_mark || !cells[i].empty(), cells[i]));
    }
    if (shown.column.drop() > 0) dropped.emplace_back(shown.column.drop(), shown.column.label());
  }
  std::ranges::sort(dropped);
  for (auto& [order, label] : dropped) table.drop.push_back(std::move(label));
  return table;
}

std::string FigureList(const Message& message, const CellWords& words,
                       std::initializer_list<std::string_view> without) {
  std::vector<std::string> figures;
  for (const ShownField& shown : ShownFields(message)) {
    const std::string& label = shown.column.label();
    if (label.empty() || std::ranges::find(without, shown.field->name()) != without.end()) continue;
    const std::string text = FieldText(message, shown, words, {});
    if (!text.empty()) figures.push_back(absl::StrCat(label, " ", text));
  }
  return absl::StrJoin(figures, ", ");
}

}  // namespace eplb::cli
