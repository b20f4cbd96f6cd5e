// Checks that messages of every release stay readable: the protos are compared with the descriptor
// set of every release, tests/data/wire/VERSION/descriptors.binpb, and what its ranks and its
// daemon said to each other is converted. A release adds its own with
// tests/integration/record_release.py VERSION.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/message_differencer.h>

#include "proto/wire/convert.h"

#include "eplb/v1/admin.pb.h"
#include "eplb/v1/query.pb.h"
#include "eplb/v1/session.pb.h"

namespace eplb {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

std::vector<std::filesystem::path> ReleasedSets() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(EPLB_DATA "/wire")) {
    found.push_back(entry.path() / "descriptors.binpb");
  }
  return found;
}

FileDescriptorSet ReadSet(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromIstream(&file)) << path;
  return set;
}

// A length-delimited message may be read as another kind of it, a number never. The oneof that
// stands for a single optional field is not on the wire: a field may become optional, or stop.
std::string TypeOf(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.message_type() != nullptr)
    absl::StrAppend(&type, " ", field.message_type()->full_name());
  if (field.enum_type() != nullptr) absl::StrAppend(&type, " ", field.enum_type()->full_name());
  const google::protobuf::OneofDescriptor* const oneof = field.real_containing_oneof();
  return absl::StrCat(field.is_repeated() ? "repeated " : "", field.is_map() ? "map " : "", type,
                      oneof == nullptr ? "" : absl::StrCat(" of oneof ", oneof->name()));
}

// Every difference that an older peer would meet, one a line.
class Comparison {
 public:
  explicit Comparison(const DescriptorPool& now) : now_(now) {}

  void Compare(const FileDescriptor& old) {
    for (int i = 0; i < old.message_type_count(); ++i) Compare(*old.message_type(i));
    for (int i = 0; i < old.enum_type_count(); ++i) Compare(*old.enum_type(i));
    for (int i = 0; i < old.service_count(); ++i) Compare(*old.service(i));
  }
  const std::string& differences() const { return differences_; }

 private:
  void Tell(const std::string& place, const std::string& what) {
    absl::StrAppend(&differences_, place, ": ", what, "\n");
  }

  void Compare(const Descriptor& old) {
    const Descriptor* const now = now_.FindMessageTypeByName(old.full_name());
    if (now == nullptr) return Tell(old.full_name(), "the message is gone");
    for (int i = 0; i < old.field_count(); ++i) Compare(*old.field(i), *now);
    for (int i = 0; i < old.nested_type_count(); ++i) Compare(*old.nested_type(i));
    for (int i = 0; i < old.enum_type_count(); ++i) Compare(*old.enum_type(i));
    for (int i = 0; i < old.reserved_range_count(); ++i) {
      const Descriptor::ReservedRange& range = *old.reserved_range(i);
      // Numbers that were reserved for later may be in use now; the range's begin shows the most.
      if (!now->IsReservedNumber(range.start) && now->FindFieldByNumber(range.start) == nullptr) {
        Tell(old.full_name(), absl::StrCat("number ", range.start, " is not reserved any more"));
      }
    }
  }

  void Compare(const FieldDescriptor& old, const Descriptor& message) {
    const FieldDescriptor* const now = message.FindFieldByNumber(old.number());
    if (now == nullptr) {
      if (!message.IsReservedNumber(old.number())) {
        Tell(old.full_name(), absl::StrCat("number ", old.number(), " is gone and not reserved"));
      }
      return;
    }
    if (now->name() != old.name()) {
      Tell(old.full_name(), absl::StrCat("number ", old.number(), " is ", now->name(), " now"));
    }
    if (TypeOf(*now) != TypeOf(old)) {
      Tell(old.full_name(), absl::StrCat("was ", TypeOf(old), ", is ", TypeOf(*now)));
    }
  }

  void Compare(const EnumDescriptor& old) {
    const EnumDescriptor* const now = now_.FindEnumTypeByName(old.full_name());
    if (now == nullptr) return Tell(old.full_name(), "the enum is gone");
    for (int i = 0; i < old.value_count(); ++i) {
      const EnumValueDescriptor* const value = now->FindValueByNumber(old.value(i)->number());
      const bool reserved = now->IsReservedNumber(old.value(i)->number());
      if (value == nullptr ? !reserved : value->name() != old.value(i)->name()) {
        Tell(old.value(i)->full_name(), "the value has another name or is gone, not reserved");
      }
    }
  }

  void Compare(const ServiceDescriptor& old) {
    const ServiceDescriptor* const service = now_.FindServiceByName(old.full_name());
    if (service == nullptr) return Tell(old.full_name(), "the service is gone");
    for (int i = 0; i < old.method_count(); ++i) {
      const MethodDescriptor& was = *old.method(i);
      const MethodDescriptor* const now = service->FindMethodByName(was.name());
      if (now == nullptr) {
        Tell(was.full_name(), "the call is gone");
      } else if (SignatureOf(*now) != SignatureOf(was)) {
        Tell(was.full_name(), absl::StrCat("was ", SignatureOf(was), ", is ", SignatureOf(*now)));
      }
    }
  }

  static std::string SignatureOf(const MethodDescriptor& method) {
    return absl::StrCat(
        method.client_streaming() ? "stream " : "", method.input_type()->full_name(), " -> ",
        method.server_streaming() ? "stream " : "", method.output_type()->full_name());
  }

  const DescriptorPool& now_;
  std::string differences_;
};

std::string DifferencesTo(const FileDescriptorSet& old) {
  DescriptorPool pool;
  Comparison comparison(*v1::PreviewRequest::descriptor()->file()->pool());
  for (const google::protobuf::FileDescriptorProto& file : old.file()) {
    const FileDescriptor* const built = pool.BuildFile(file);
    EXPECT_NE(built, nullptr) << file.name();
    if (built != nullptr) comparison.Compare(*built);
  }
  return comparison.differences();
}

// The linker keeps every file of the protos.
TEST(CompatibilityTest, EveryReleaseCanStillBeRead) {
  ASSERT_NE(v1::GetStatusRequest::descriptor(), nullptr);
  ASSERT_NE(v1::Up::descriptor(), nullptr);
  const std::vector<std::filesystem::path> released = ReleasedSets();
  ASSERT_FALSE(released.empty());
  for (const std::filesystem::path& path : released) {
    const FileDescriptorSet set = ReadSet(path);
    EXPECT_GE(set.file_size(), 4) << path;
    EXPECT_EQ(DifferencesTo(set), "") << path;
  }
}

google::protobuf::DescriptorProto* MessageIn(FileDescriptorSet& set, const std::string& name) {
  for (auto& file : *set.mutable_file()) {
    for (auto& message : *file.mutable_message_type()) {
      if (message.name() == name) return &message;
    }
  }
  return nullptr;
}

// Changes the release, as if the protos had changed since.
TEST(CompatibilityTest, EachKindOfBreakIsNoticed) {
  using Change = std::function<void(FileDescriptorSet&)>;
  const std::pair<const char*, Change> breaks[] = {
      {"Change.comment: was int64, is string",
       [](FileDescriptorSet& set) {
         MessageIn(set, "Change")
             ->mutable_field(3)
             ->set_type(google::protobuf::FieldDescriptorProto::TYPE_INT64);
       }},
      {"Change.comment: number 40 is gone and not reserved",
       [](FileDescriptorSet& set) { MessageIn(set, "Change")->mutable_field(3)->set_number(40); }},
      {"Change.why: number 4 is comment now",
       [](FileDescriptorSet& set) { MessageIn(set, "Change")->mutable_field(3)->set_name("why"); }},
      {"Change.comment: was repeated string, is string",
       [](FileDescriptorSet& set) {
         MessageIn(set, "Change")
             ->mutable_field(3)
             ->set_label(google::protobuf::FieldDescriptorProto::LABEL_REPEATED);
       }},
      {"eplb.v1.Gone: the message is gone",
       [](FileDescriptorSet& set) { set.mutable_file(0)->add_message_type()->set_name("Gone"); }},
      {"eplb.v1.Admin.Undo: the call is gone",
       [](FileDescriptorSet& set) {
         for (auto& file : *set.mutable_file()) {
           for (auto& service : *file.mutable_service()) {
             if (service.name() != "Admin") continue;
             auto* const method = service.add_method();
             method->set_name("Undo");
             method->set_input_type(".eplb.v1.Change");
             method->set_output_type(".eplb.v1.Change");
           }
         }
       }},
      {"JOB_STATE_ODD: the value has another name",
       [](FileDescriptorSet& set) {
         for (auto& file : *set.mutable_file()) {
           for (auto& one : *file.mutable_enum_type()) {
             if (one.name() == "JobState") one.mutable_value(2)->set_name("JOB_STATE_ODD");
           }
         }
       }},
  };
  const FileDescriptorSet released = ReadSet(ReleasedSets().front());
  for (const auto& [message, change] : breaks) {
    FileDescriptorSet set = released;
    change(set);
    EXPECT_NE(DifferencesTo(set).find(message), std::string::npos) << message << "\nfound:\n"
                                                                   << DifferencesTo(set);
  }
}

// The messages of one direction, each behind the five bytes that gRPC puts there.
template <class Message>
std::vector<Message> ReadMessages(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<Message> messages;
  constexpr size_t kPrefix = 5;
  for (size_t at = 0; at + kPrefix <= bytes.size();) {
    size_t length = 0;
    for (size_t i = 1; i < kPrefix; ++i) length = length << 8 | static_cast<uint8_t>(bytes[at + i]);
    at += kPrefix;
    messages.emplace_back();
    EXPECT_TRUE(messages.back().ParseFromString(bytes.substr(at, length))) << path << " at " << at;
    at += length;
  }
  return messages;
}

// Returns the bytes that this release would write; a field that it does not have would be missing.
template <class Message>
void ExpectConverted(const std::filesystem::path& path, std::set<int> expected_cases) {
  const std::vector<Message> messages = ReadMessages<Message>(path);
  EXPECT_FALSE(messages.empty()) << path;
  for (const Message& message : messages) {
    const auto converted = wire::FromProto(message);
    ASSERT_TRUE(converted.ok()) << path << ": " << message.ShortDebugString() << "\n"
                                << converted.status();
    Message again;
    wire::ToProto(*converted, &again);
    EXPECT_EQ(again.message_case(), message.message_case()) << path;
    EXPECT_EQ(again.ByteSizeLong() == 0, message.ByteSizeLong() == 0);
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equivalent(again, message))
        << path << ": " << message.ShortDebugString() << "\nbecame " << again.ShortDebugString();
    expected_cases.erase(message.message_case());
  }
  EXPECT_TRUE(expected_cases.empty())
      << path << " has no message of case " << *expected_cases.begin();
}

TEST(CompatibilityTest, SessionsOfEveryReleaseAreConverted) {
  for (const std::filesystem::path& path : ReleasedSets()) {
    ExpectConverted<v1::Up>(path.parent_path() / "up.bin",
                            {v1::Up::kHello, v1::Up::kLoadReport, v1::Up::kPrepared,
                             v1::Up::kApplied, v1::Up::kGoodbye});
    ExpectConverted<v1::Down>(path.parent_path() / "down.bin",
                              {v1::Down::kWelcome, v1::Down::kPropose, v1::Down::kKeep});
  }
}

}  // namespace
}  // namespace eplb
