// Tables and lists of messages, by the `column` options of their fields (eplb/v1/options.proto).
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <google/protobuf/message.h>

#include "client/cli/terminal.h"
#include "client/cli/text.h"

namespace eplb::cli {

// Words for the fields of these names in place of their values; empty: no value.
using CellWords =
    std::map<std::string, std::function<std::string(const google::protobuf::Message&)>,
             std::less<>>;
// text: a function of a Message, or a member.
template <class Message, class Text>
CellWords::mapped_type InWords(Text text) {
  return [text](const google::protobuf::Message& message) {
    return std::invoke(text, dynamic_cast<const Message&>(message));
  };
}

// Returns a row per message. A field that is not set is "-", and a column without any value is left
// out. Long texts are cut, words are not. REQUIRES: the messages are of one type.
Table MessageTable(const std::vector<const google::protobuf::Message*>& rows,
                   const Terminal& terminal, const CellWords& words = {});
template <class Rows>
Table MessageTable(const Rows& rows, const Terminal& terminal, const CellWords& words = {}) {
  std::vector<const google::protobuf::Message*> messages(static_cast<size_t>(rows.size()));
  std::transform(rows.begin(), rows.end(), messages.begin(), [](const auto& row) { return &row; });
  return MessageTable(messages, terminal, words);
}

// Returns "measured 0.712, transfers 516, ..": the label and the value of each field that is set,
// but for the fields `without`, the columns of tables first.
std::string FigureList(const google::protobuf::Message& message, const CellWords& words = {},
                       std::initializer_list<std::string_view> without = {});

}  // namespace eplb::cli
