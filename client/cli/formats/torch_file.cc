#include "client/cli/formats/torch_file.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/zip_archive.h"

namespace eplb {
namespace {

constexpr std::string_view kPickle = "/data.pkl";  // ending of the pickle's member
constexpr size_t kMaxPickleBytes = size_t{1} << 20;
constexpr std::string_view kTensorMaker = "_rebuild_tensor_v2";
constexpr std::string_view kOrderedDict = "OrderedDict";

// A value of a pickle. Values refer to each other by index, because one may hold itself.
struct Value {
  enum class Kind { kOther, kInteger, kText, kClass, kTuple, kList, kDict, kStorage, kTensor };
  Kind kind = Kind::kOther;
  int64_t integer = 0;
  std::string_view text = {};  // of kClass its name
  // Of a dictionary keys and values in turn; of a storage and a tensor what it is made of.
  std::vector<size_t> items = {};
};

// Runs the opcodes of a pickle on values that are data alone. The first fault ends the run.
class Pickle {
 public:
  explicit Pickle(std::string_view bytes) : rest_(bytes) {}

  // Returns the value that the pickle is. Call once.
  absl::StatusOr<Value> Run() {
    if (Take(2) != "\x80\x02") Fail("is not of protocol 2");
    while (error_.empty()) {
      const std::string_view code = Take(1);
      if (code.empty() || code == ".") break;
      if (const Opcode* const opcode = FindOpcode(code[0]); opcode != nullptr) {
        opcode->run(*this);
      } else {
        Fail(absl::StrCat("has the opcode 0x", absl::Hex(code[0], absl::kZeroPad2)));
      }
    }
    const Value& result = at(Pop());
    if (error_.empty()) return result;
    return InvalidInput("its data.pkl ", error_,
                        "; tensors, dictionaries, lists, text and numbers are read, more of them "
                        "by `python -m eplb.convert`");
  }

  const Value& at(size_t index) const { return values_[index]; }

  // Returns an item of a value, or a value of no kind.
  const Value& Item(const Value& value, size_t i) const {
    return at(i < value.items.size() ? value.items[i] : 0);
  }
  // Returns the integers of a tuple; none if it holds anything else.
  std::vector<int64_t> Integers(const Value& tuple) const {
    std::vector<int64_t> integers;
    for (const size_t item : tuple.items) {
      if (at(item).kind != Kind::kInteger) return {};
      integers.push_back(at(item).integer);
    }
    return integers;
  }

 private:
  using Kind = Value::Kind;
  using Items = std::vector<size_t>;

  struct Opcode {
    char code;
    void (*run)(Pickle& pickle);
  };

  // The opcodes of Python's Lib/pickletools.py that torch.save writes for such values.
  static const Opcode* FindOpcode(char code) {
    static constexpr Opcode kOpcodes[] = {
        {'N', [](Pickle& p) { p.Push({}); }},             // None
        {'\x88', [](Pickle& p) { p.Push({}); }},          // True
        {'\x89', [](Pickle& p) { p.Push({}); }},          // False
        {'G', [](Pickle& p) { p.Take(8), p.Push({}); }},  // a float
        {'K', [](Pickle& p) { p.PushInteger(p.Take(1), 0); }},
        {'M', [](Pickle& p) { p.PushInteger(p.Take(2), 0); }},
        {'J', [](Pickle& p) { p.PushInteger(p.Take(4), 32); }},
        {'\x8a', [](Pickle& p) { p.PushLong(p.TakeSize(1)); }},
        {'X', [](Pickle& p) { p.Push({.kind = Kind::kText, .text = p.Take(p.TakeSize(4))}); }},
        {'c', [](Pickle& p) { p.PushClass(); }},
        {'q', [](Pickle& p) { p.memo_[p.TakeSize(1)] = p.Top(); }},
        {'r', [](Pickle& p) { p.memo_[p.TakeSize(4)] = p.Top(); }},
        {'h', [](Pickle& p) { p.PushMemo(p.TakeSize(1)); }},
        {'j', [](Pickle& p) { p.PushMemo(p.TakeSize(4)); }},
        {'(', [](Pickle& p) { p.marks_.push_back(p.stack_.size()); }},
        {')', [](Pickle& p) { p.Push(Kind::kTuple, {}); }},
        {']', [](Pickle& p) { p.Push(Kind::kList, {}); }},
        {'}', [](Pickle& p) { p.Push(Kind::kDict, {}); }},
        {'t', [](Pickle& p) { p.Push(Kind::kTuple, p.PopToMark()); }},
        {'\x85', [](Pickle& p) { p.Push(Kind::kTuple, p.PopItems(1)); }},
        {'\x86', [](Pickle& p) { p.Push(Kind::kTuple, p.PopItems(2)); }},
        {'\x87', [](Pickle& p) { p.Push(Kind::kTuple, p.PopItems(3)); }},
        {'a', [](Pickle& p) { p.Extend(Kind::kList, p.PopItems(1)); }},
        {'e', [](Pickle& p) { p.Extend(Kind::kList, p.PopToMark()); }},
        {'s', [](Pickle& p) { p.Extend(Kind::kDict, p.PopItems(2)); }},
        {'u', [](Pickle& p) { p.Extend(Kind::kDict, p.PopToMark()); }},
        {'Q', [](Pickle& p) { p.Make(Kind::kStorage, p.at(p.Pop())); }},
        {'R', [](Pickle& p) { p.Call(); }}};
    const auto found = std::ranges::find(kOpcodes, code, &Opcode::code);
    return found == std::end(kOpcodes) ? nullptr : found;
  }

  void Fail(std::string_view what) {
    if (error_.empty()) error_ = what;
  }

  std::string_view Take(size_t size) {
    if (size > rest_.size()) Fail("is cut off");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  size_t TakeSize(size_t bytes) { return LittleEndian(Take(bytes)); }
  std::string_view TakeLine() {
    const std::string_view line = Take(std::min(rest_.find('\n'), rest_.size()));
    (void)Take(1);
    return line;
  }

  void Push(Value value) {
    stack_.push_back(values_.size());
    values_.push_back(std::move(value));
  }
  void Push(Kind kind, Items items) { Push({.kind = kind, .items = std::move(items)}); }
  // unused: number of the highest bits of 64 that repeat the sign.
  void PushInteger(std::string_view bytes, int unused) {
    const auto number = static_cast<int64_t>(LittleEndian(bytes) << unused);
    Push({.kind = Kind::kInteger, .integer = number >> unused});
  }
  void PushLong(size_t size) {
    if (size < 1 || size > 8) return Fail("has an integer above 64 bits");
    PushInteger(Take(size), static_cast<int>(64 - 8 * size));
  }
  void PushMemo(size_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) return Fail("refers to a value that is not there");
    stack_.push_back(found->second);
  }
  void PushClass() {
    const std::string_view module = TakeLine();
    const std::string_view name = TakeLine();
    const bool known = module == "torch" ? name.ends_with("Storage")
                                         : (module == "torch._utils" && name == kTensorMaker) ||
                                               (module == "collections" && name == kOrderedDict);
    if (!known) Fail(absl::StrCat("names ", Clipped(module, 40), ".", Clipped(name, 40)));
    Push({.kind = Kind::kClass, .text = name});
  }

  Items PopItems(size_t count) {
    if (stack_.size() < count + (marks_.empty() ? 0 : marks_.back()))
      return Fail("takes values that are not there"), Items(count);
    const Items items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  Items PopToMark() {
    if (marks_.empty()) return Fail("has no mark"), Items();
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return PopItems(count);
  }
  size_t Pop() { return PopItems(1).front(); }
  size_t Top() {
    const size_t top = Pop();
    stack_.push_back(top);
    return top;
  }

  void Extend(Kind kind, const Items& items) {
    Value& value = values_[Top()];
    if (value.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0)) {
      return Fail("adds to what is no list or dictionary");
    }
    value.items.insert(value.items.end(), items.begin(), items.end());
  }
  // Copies few arguments, because many calls may share them.
  void Make(Kind kind, const Value& arguments) {
    if (arguments.kind != Kind::kTuple || arguments.items.size() > 8) {
      return Fail("has other arguments than a tensor");
    }
    Push(kind, arguments.items);
  }
  void Call() {
    const Value& arguments = at(Pop());
    const Value& callee = at(Pop());
    const std::string_view name = callee.kind == Kind::kClass ? callee.text : std::string_view();
    if (name == kTensorMaker) return Make(Kind::kTensor, arguments);
    if (name != kOrderedDict || !arguments.items.empty()) return Fail("makes another object");
    Push(Kind::kDict, {});
  }

  std::string_view rest_;
  std::string error_;
  std::vector<Value> values_ = std::vector<Value>(1);  // the first stands for a missing one
  Items stack_;
  Items marks_;  // sizes of the stack
  std::map<size_t, size_t> memo_;
};

// torch.save compresses no member.
absl::StatusOr<std::vector<ZipMember>> ReadStored(
    std::string_view bytes, const std::function<bool(std::string_view name)>& wanted) {
  constexpr int64_t kMaxMembers = 4096;
  EPLB_ASSIGN_OR_RETURN(std::vector<ZipMember> members, ReadZip(bytes, kMaxMembers, wanted));
  for (const ZipMember& member : members) {
    if (!member.is_stored) return InMember(member.name, "is compressed, which no torch.save does");
  }
  return members;
}

// Points the array at the first of its numbers. offset: of that number in the storage.
absl::Status PlaceIn(std::string storage, int64_t offset, Array& array) {
  const int64_t held = std::ssize(storage) / array.type->size;
  EPLB_ASSIGN_OR_RETURN(const int64_t numbers, CountNumbers(array.shape));
  bool fits = array.shape.size() == array.strides.size() && numbers <= held && offset >= 0;
  int64_t last = offset;
  for (size_t i = 0; i < array.shape.size() && fits && last < held; ++i) {
    fits = array.strides[i] >= 0 && (array.shape[i] == 1 || array.strides[i] < held);
    last += (array.shape[i] - 1) * array.strides[i];
  }
  if (!fits || last >= held) {
    return InvalidInput("has the shape [", absl::StrJoin(array.shape, ", "), "] and the strides [",
                        absl::StrJoin(array.strides, ", "), "] from number ", offset, " of ", held);
  }
  array.owner = std::make_shared<const std::string>(std::move(storage));
  array.data = *array.owner;
  array.data.remove_prefix(static_cast<size_t>(offset * array.type->size));
  return absl::OkStatus();
}

// tensor: (storage, offset, shape, strides, ..) with a storage ("storage", type, key, ..), whose
// bytes are the member data/KEY beside the pickle's.
absl::StatusOr<Array> ReadArray(std::string_view bytes, const std::string& folder,
                                const Pickle& pickle, const Value& tensor) {
  const Value& storage = pickle.Item(tensor, 0);
  const std::string type(pickle.Item(storage, 1).text);
  Array array{.type = FindNumberType(&NumberType::torch, type),
              .shape = pickle.Integers(pickle.Item(tensor, 2)),
              .strides = pickle.Integers(pickle.Item(tensor, 3))};
  if (storage.kind != Value::Kind::kStorage || array.type == nullptr) {
    return InvalidInput("is in a storage of type ", wire::JsonQuote(FirstCharacters(type, 40)),
                        ", expected integers or floats");
  }
  const std::string data =
      absl::StrCat(folder, "/data/", std::string(pickle.Item(storage, 2).text));
  const std::string order = folder + "/byteorder";
  EPLB_ASSIGN_OR_RETURN(
      std::vector<ZipMember> members,
      ReadStored(bytes, [&](std::string_view name) { return name == data || name == order; }));
  std::string* found = nullptr;
  for (ZipMember& member : members) {
    if (member.name == data) found = &member.bytes;
    if (member.name == order && member.bytes != "little") return InMember(order, "is not little");
  }
  if (found == nullptr) return InMember(data, "is missing");
  EPLB_RETURN_IF_ERROR(PlaceIn(std::move(*found), pickle.Item(tensor, 1).integer, array));
  return array;
}

}  // namespace

bool IsTorchFile(std::string_view bytes) {
  // Protocol 2 to 5 of a pickle.
  if (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5) return true;
  // A zip's local header: the length of the name in bytes 26 and 27, the name from byte 30.
  constexpr size_t kLengthAt = 26;
  constexpr size_t kNameAt = 30;
  return bytes.starts_with(kZipMagic) && bytes.size() >= kNameAt &&
         bytes.substr(kNameAt, LittleEndian(bytes.substr(kLengthAt, 2))).ends_with(kPickle);
}

absl::StatusOr<TorchTensor> ReadTorchTensor(std::string_view bytes, std::string_view key) {
  if (!bytes.starts_with(kZipMagic)) {
    return InvalidInput(
        "is a pickle alone or of torch before 1.6, which is not read; save it anew");
  }
  EPLB_ASSIGN_OR_RETURN(
      const std::vector<ZipMember> members,
      ReadStored(bytes, [](std::string_view name) { return name.ends_with(kPickle); }));
  if (members.size() != 1 || members[0].bytes.size() > kMaxPickleBytes) {
    return InvalidInput("has ", members.size(), " members data.pkl, expected one of at most ",
                        kMaxPickleBytes, " bytes");
  }
  Pickle pickle(members[0].bytes);
  EPLB_ASSIGN_OR_RETURN(const Value root, pickle.Run());
  const Value* tensor = &root;
  for (size_t i = 0; root.kind == Value::Kind::kDict && i < root.items.size(); i += 2) {
    if (pickle.Item(root, i).text == key) tensor = &pickle.Item(root, i + 1);
  }
  if (tensor->kind != Value::Kind::kTensor) {
    return InvalidInput("is no tensor, and no dictionary with a tensor ", wire::JsonQuote(key));
  }
  const std::string folder = members[0].name.substr(0, members[0].name.size() - kPickle.size());
  absl::StatusOr<Array> array = ReadArray(bytes, folder, pickle, *tensor);
  if (array.ok()) return TorchTensor{*std::move(array), tensor == &root};
  return InvalidInput(tensor == &root ? "the tensor" : std::string(key), " ",
                      array.status().message());
}

}  // namespace eplb
