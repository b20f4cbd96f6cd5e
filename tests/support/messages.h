// Messages in tests: written as text, and compared by their fields.
#pragma once

#include <concepts>
#include <cstdlib>
#include <string>

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

namespace eplb {

// Returns the message of a text such as `plan: 7 policy: "incremental"`.
template <class Message>
Message MessageOf(const std::string& text) {
  Message message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message)) std::abort();
  return message;
}

namespace v1 {

template <std::derived_from<google::protobuf::Message> Message>
bool operator==(const Message& a, const Message& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

}  // namespace v1
}  // namespace eplb
