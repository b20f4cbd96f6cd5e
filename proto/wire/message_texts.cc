#include "proto/wire/message_texts.h"

#include <vector>

#include "base/text.h"

namespace eplb::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void ClipText(const FieldDescriptor& field, size_t most, Message* message) {
  const Reflection& values = *message->GetReflection();
  if (!field.is_repeated()) {
    values.SetString(message, &field, Clipped(values.GetString(*message, &field), most));
    return;
  }
  for (int i = 0; i < values.FieldSize(*message, &field); ++i) {
    values.SetRepeatedString(message, &field, i,
                             Clipped(values.GetRepeatedString(*message, &field, i), most));
  }
}

void ClipInside(const FieldDescriptor& field, size_t most, Message* message) {
  const Reflection& values = *message->GetReflection();
  if (!field.is_repeated()) return ClipTexts(values.MutableMessage(message, &field), most);
  for (int i = 0; i < values.FieldSize(*message, &field); ++i) {
    ClipTexts(values.MutableRepeatedMessage(message, &field, i), most);
  }
}

}  // namespace

void ClipTexts(Message* message, size_t most) {
  std::vector<const FieldDescriptor*> fields;
  message->GetReflection()->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) ClipText(*field, most, message);
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) ClipInside(*field, most, message);
    if (field->type() != FieldDescriptor::TYPE_DOUBLE || field->is_repeated()) continue;
    const Reflection& values = *message->GetReflection();
    values.SetDouble(message, field, FiniteOrZero(values.GetDouble(*message, field)));
  }
}

}  // namespace eplb::wire
