#include "client/cli/formats/torch_file.h"

#include <algorithm>
#include <cstddef>
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

// A value of a pickle. Values refer to each other by index, because one may hold itself, and so
// that no depth of them takes a stack.
struct Value {
  enum class Kind { kOther, kInteger, kText, kClass, kTuple, kList, kDict, kStorage, kTensor };
  Kind kind = Kind::kOther;
  int64_t integer = 0;         // 32 bits
  std::string_view text = {};  // text, or the name of a class
  // Entries; keys and values in turn of a dictionary, arguments of a storage or tensor.
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
                        "; tensors, dictionaries, lists, text and numbers are read");
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
        {'N', [](Pickle& p) { p.Push({}); }},                // Python's None
        {'\x88', [](Pickle& p) { p.Push({}); }},             // True
        {'\x89', [](Pickle& p) { p.Push({}); }},             // False
        {'G', [](Pickle& p) { p.Skip(8); }},                 // float
        {'\x8a', [](Pickle& p) { p.Skip(p.TakeSize(1)); }},  // integer above 32 bits
        {'K', [](Pickle& p) { p.PushInteger(static_cast<int64_t>(p.TakeSize(1))); }},
        {'M', [](Pickle& p) { p.PushInteger(static_cast<int64_t>(p.TakeSize(2))); }},
        {'J', [](Pickle& p) { p.PushInteger(static_cast<int32_t>(p.TakeSize(4))); }},
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
  void Skip(size_t size) {
    (void)Take(size);
    Push({});
  }
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
  void PushInteger(int64_t integer) { Push({.kind = Kind::kInteger, .integer = integer}); }
  void PushMemo(size_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) return Fail("refers to a value that is not there");
    stack_.push_back(found->second);
  }
  void PushClass() {
    const std::string_view module = TakeLine();
    const std::string_view name = TakeLine();
    if (!(module == "torch" && name.ends_with("Storage")) &&
        !(module == "torch._utils" && name == kTensorMaker) &&
        !(module == "collections" && name == kOrderedDict)) {
      Fail(absl::StrCat("names ", Clipped(module, 40), ".", Clipped(name, 40)));
    }
    Push({.kind = Kind::kClass, .text = name});
  }

  // The newest values, at most down to the newest mark.
  Items PopItems(size_t count) {
    const size_t first = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < first + count) Fail("takes values that are not there");
    if (!error_.empty()) return Items(count);
    Items items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  Items PopToMark() {
    if (marks_.empty()) {
      Fail("has no mark");
      return {};
    }
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

// tensor: (storage, offset, shape, strides, ..) with a storage ("storage", type, key, ..), whose
// bytes are the member data/KEY beside the pickle's.
absl::StatusOr<Array> ReadArray(ZipMembers& members, const std::string& folder,
                                const Pickle& pickle, const Value& tensor) {
  const Value& storage = pickle.Item(tensor, 0);
  const std::string type(pickle.Item(storage, 1).text);
  Array array{.type = FindNumberType(&NumberType::torch, type),
              .shape = pickle.Integers(pickle.Item(tensor, 2)),
              .strides = pickle.Integers(pickle.Item(tensor, 3))};
  const std::string key(pickle.Item(storage, 2).text);
  const auto data = members.find(absl::StrCat(folder, "/data/", key));
  if (storage.kind != Value::Kind::kStorage || array.type == nullptr || data == members.end()) {
    return InvalidInput("is in a storage of type ", wire::JsonQuote(FirstCharacters(type, 40)),
                        " and key ", wire::JsonQuote(FirstCharacters(key, 40)),
                        ", expected integers or floats");
  }
  EPLB_ASSIGN_OR_RETURN(const int64_t numbers, CountNumbers(array.shape));
  const int64_t held = std::ssize(data->second) / array.type->size;
  const Value& offset = pickle.Item(tensor, 1);
  bool fits = offset.kind == Value::Kind::kInteger && offset.integer >= 0 && numbers <= held &&
              array.shape.size() == array.strides.size();
  int64_t last = offset.integer;
  for (size_t i = 0; i < array.shape.size() && fits; ++i) {
    fits = array.strides[i] >= 0 && (array.shape[i] == 1 || array.strides[i] < held);
    last += (array.shape[i] - 1) * array.strides[i];
  }
  if (!fits || last >= held) {
    return InvalidInput("has the shape [", absl::StrJoin(array.shape, ", "), "] and the strides [",
                        absl::StrJoin(array.strides, ", "), "] from number ", offset.integer,
                        " of ", held);
  }
  array.owner = std::make_shared<const std::string>(std::move(data->second));
  array.data = *array.owner;
  array.data.remove_prefix(static_cast<size_t>(offset.integer * array.type->size));
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
    return InvalidInput("is a pickle or of torch before 1.6, which is not read; save it anew");
  }
  EPLB_ASSIGN_OR_RETURN(ZipMembers members,
                        ReadZip(bytes, {.max_members = 4096, .stored_only = true}));
  const auto is_pickle = [](const auto& member) { return member.first.ends_with(kPickle); };
  const auto pickled = std::ranges::find_if(members, is_pickle);
  if (std::ranges::count_if(members, is_pickle) != 1 || pickled->second.size() > kMaxPickleBytes) {
    return InvalidInput("expected one member data.pkl, of at most ", kMaxPickleBytes, " bytes");
  }
  const std::string folder = pickled->first.substr(0, pickled->first.size() - kPickle.size());
  const auto order = members.find(folder + "/byteorder");
  if (order != members.end() && order->second != "little") return InvalidInput("is big endian");
  Pickle pickle(pickled->second);
  EPLB_ASSIGN_OR_RETURN(const Value root, pickle.Run());
  const Value* tensor = &root;
  for (size_t i = 0; root.kind == Value::Kind::kDict && i < root.items.size(); i += 2) {
    if (pickle.Item(root, i).text == key) tensor = &pickle.Item(root, i + 1);
  }
  if (tensor->kind != Value::Kind::kTensor) {
    return InvalidInput("is no tensor, and no dictionary with a tensor ", wire::JsonQuote(key));
  }
  absl::StatusOr<Array> array = ReadArray(members, folder, pickle, *tensor);
  if (array.ok()) return TorchTensor{*std::move(array), tensor == &root};
  return InvalidInput(tensor == &root ? "the tensor" : std::string(key), " ",
                      array.status().message());
}

}  // namespace eplb
