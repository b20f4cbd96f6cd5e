// The texts and numbers of a message, made fit to be parsed and shown by whoever receives it.
// Protobuf sends text that is not UTF-8, and then the receiver refuses the whole message.
#pragma once

#include <cstddef>

#include <google/protobuf/message.h>

#include "base/foreign_text.h"

namespace eplb::wire {

// Replaces every string field of `message` and of the messages inside it by Clipped(field, most),
// and every number that is not finite by 0. Fields of bytes and repeated numbers stay as they are.
// cost: linear in the message's fields.
void ClipTexts(google::protobuf::Message* message, size_t most = kMaxLongText);

}  // namespace eplb::wire
