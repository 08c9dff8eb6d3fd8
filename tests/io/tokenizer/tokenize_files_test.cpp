// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <thread>

#include "hdf5/handles.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "io/dataset/files.hpp"
#include "tokenizer/document_reader.hpp"

namespace hyperslab::test {
namespace {

class TokenizeFiles : public FilesTest {
 protected:
  std::int64_t tokenize(const std::vector<std::string>& inputs, const std::string& output,
                        const io::DocumentSeparator& separator = {}) {
    return io::tokenize_files(*io::open_tokenizer("bytes"), inputs, path(output), separator);
  }
  /// What the reader gives, with | for the end of a document.
  std::string pieces(const std::string& text, const io::DocumentSeparator& separator = {}) {
    io::DocumentReader reader(write("in.txt", text), separator);
    std::string out;
    for (io::DocumentReader::Chunk chunk; !chunk.ends_file;) {
      chunk = reader.next();
      out += chunk.text;
      if (chunk.ends_document) out += '|';
    }
    return out;
  }
  /// The tokens of the file as text, with | for the end of a document.
  std::string text_of(const std::string& name) {
    std::string text;
    for (const std::int32_t id :
         read_all(*io::open_tokens({path(name)}, io::RawIds::uint16, 257, 1))) {
      text += id == 256 ? '|' : static_cast<char>(id);
    }
    return text;
  }
  std::string documents(const std::string& text, const io::DocumentSeparator& separator = {}) {
    tokenize({write("in.txt", text)}, "documents.bin", separator);
    return text_of("documents.bin");
  }
  [[nodiscard]] std::int64_t read_size(const std::string& name) const {
    return io::open_tokens({path(name)}, io::RawIds::uint16, 257, 1)->size();
  }
  /// The dataset of document starts.
  [[nodiscard]] std::vector<std::int64_t> starts_in(const std::string& name) const {
    const io::hdf5::Handle file(H5Fopen(path(name).c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    const io::hdf5::Handle dataset(H5Dopen2(file.get(), "documents", H5P_DEFAULT), H5Dclose);
    const io::hdf5::Handle space(H5Dget_space(dataset.get()), H5Sclose);
    std::vector<std::int64_t> out(
        static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dread(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data());
    return out;
  }
  /// The text of a token file.
  std::string decoded_file(const std::string& name, const io::DocumentSeparator& separator = {}) {
    io::decode_files(*io::open_tokenizer("bytes"), {path(name)}, path("back.txt"), separator);
    return content("back.txt");
  }
};

const io::DocumentSeparator kBlankLines{io::DocumentSeparator::Kind::blank_lines, ""};
const io::DocumentSeparator kText{io::DocumentSeparator::Kind::text, "<s>"};

/// Files may not grow beyond `bytes` while this lives: writing fails as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  FileSizeLimit(FileSizeLimit&&) = delete;
  FileSizeLimit& operator=(FileSizeLimit&&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(TokenizeFiles, WritesEveryFormat) {
  const auto a = write("a.txt", "ab");
  const auto b = write("b.txt", "c\n");

  for (const char* output : {"t.bin", "t.npy", "t.h5"}) {
    EXPECT_EQ(tokenize({a, b}, output), 6);
    EXPECT_EQ(text_of(output), "ab|c\n|");
  }
}

TEST_F(TokenizeFiles, AMarkerLineEndsADocument) {
  EXPECT_EQ(documents("one\n<|endoftext|>\ntwo\n<|endoftext|>\n"), "one\n|two\n|");
  EXPECT_EQ(documents("one\r\n<|endoftext|>\r\ntwo"), "one\r\n|two|");
  EXPECT_EQ(documents("one\n<|endoftext|>"), "one\n|");
  EXPECT_EQ(documents("<|endoftext|>\n<|endoftext|>\none"), "one|");
  EXPECT_EQ(documents("<|endoftext|>\n"), "|");
}

TEST_F(TokenizeFiles, AMarkerWithinALineIsText) {
  EXPECT_EQ(documents("x <|endoftext|>\ny"), "x <|endoftext|>\ny|");
  EXPECT_EQ(documents("<|endoftext|> y\n"), "<|endoftext|> y\n|");
  EXPECT_EQ(documents("<|endoftext|><|endoftext|>\n"), "<|endoftext|><|endoftext|>\n|");
}

TEST_F(TokenizeFiles, BlankLinesEndADocument) {
  EXPECT_EQ(documents("one\ntwo\n\nthree", kBlankLines), "one\ntwo\n|three|");
  EXPECT_EQ(documents("\n\none\r\n\r\n\r\ntwo\n\n\n", kBlankLines), "one\r\n|two\n|");
  EXPECT_EQ(documents("one\n \ntwo\n", kBlankLines), "one\n \ntwo\n|");
  EXPECT_EQ(documents("\n", kBlankLines), "|");
  EXPECT_EQ(documents("a\n<|endoftext|>\nb", kBlankLines), "a\n<|endoftext|>\nb|");
}

TEST_F(TokenizeFiles, ATextEndsADocument) {
  EXPECT_EQ(documents("one<s>two\n<s>\nthree<s>", kText), "one|two\n|\nthree|");
  EXPECT_EQ(documents("<s><s>one<s><s>two", kText), "one|two|");
  EXPECT_EQ(documents("<s", kText), "<s|");
  const io::DocumentSeparator nul{io::DocumentSeparator::Kind::text, std::string(1, '\0')};
  EXPECT_EQ(documents(std::string("a\0b", 3), nul), "a|b|");
}

TEST_F(TokenizeFiles, DocumentStartsAreInTheHdf5File) {
  tokenize({write("in.txt", "one<s>three<s>x"), write("more.txt", "y")}, "t.h5", kText);

  EXPECT_EQ(starts_in("t.h5"), (std::vector<std::int64_t>{0, 4, 10, 12}));
}

TEST_F(TokenizeFiles, DecodingGivesTheBytesBack) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  for (const std::string& text : {every, std::string("a"), std::string("a\n"), std::string(1, '\0'),
                                  std::string("one\n<|endoftext|>\ntwo\n<|endoftext|>\nthree")}) {
    for (const char* output : {"t.bin", "t.npy", "t.h5"}) {
      const auto tokens = tokenize({write("in.txt", text)}, output);
      EXPECT_EQ(tokens, read_size(output));
      EXPECT_EQ(decoded_file(output), text);
    }
  }
}

TEST_F(TokenizeFiles, DecodingPartsDocumentsByTheSeparator) {
  tokenize({write("one.txt", "one"), write("two.txt", "two\n"), write("three.txt", "three")},
           "t.bin");

  EXPECT_EQ(decoded_file("t.bin"), "one\n<|endoftext|>\ntwo\n<|endoftext|>\nthree");
  EXPECT_EQ(decoded_file("t.bin", kBlankLines), "one\n\ntwo\n\nthree");
  EXPECT_EQ(decoded_file("t.bin", kText), "one<s>two\n<s>three");
  EXPECT_EQ(documents(decoded_file("t.bin", kText), kText), "one|two\n|three|");
}

TEST_F(TokenizeFiles, DecodingRefusesIdsOfAnotherVocabulary) {
  const auto input = write("t.bin", llmc(20240520, 1, 2, {7, 999}));

  expect_error(ExitCode::data, {input, "999"}, [&] { decoded_file("t.bin"); });
  EXPECT_EQ(number_of_files(), 1U);
}

TEST_F(TokenizeFiles, MarkersAreFoundWhereverTheBufferEnds) {
  constexpr std::size_t kBuffer = 8 << 20;
  for (const std::size_t before : {kBuffer, kBuffer - 1, kBuffer - 7, kBuffer - 13, kBuffer - 14,
                                   kBuffer - 15, kBuffer / 2 - 3}) {
    for (const char filler : {'a', '\n'}) {
      std::string expected(before - 1, filler);
      expected += '\n';
      const std::string text = expected + "<|endoftext|>\nlast";
      expected += "|last";

      EXPECT_TRUE(pieces(text) == expected) << before << " of " << int(filler);
    }
    const std::string filler(before - 1, 'a');
    const std::string lines = filler + "\n\r\n\n\nlast\n\n";
    EXPECT_TRUE(pieces(lines, kBlankLines) == filler + "\n|last\n|") << before;
    EXPECT_TRUE(pieces(filler + "<s>one<s>", kText) == filler + "|one|") << before;
  }
}

TEST_F(TokenizeFiles, PiecesAreBoundedAndKeepWordsAndCharactersWhole) {
  std::string lines;
  while (lines.size() < (20 << 20)) lines += "It was a day like any other,  \n\n and cold.\nSo ";
  std::string characters;
  while (characters.size() < (20 << 20)) characters += "\xE2\x82\xAC";

  for (const std::string& text : {lines, characters}) {
    io::DocumentReader reader(write("in.txt", text));
    std::string back;
    for (io::DocumentReader::Chunk chunk; !chunk.ends_file;) {
      chunk = reader.next();
      EXPECT_LE(chunk.text.size(), 8U << 20);
      back += chunk.text;
      if (chunk.ends_file) break;
      EXPECT_NE(text[back.size()] & 0xC0, 0x80);
      EXPECT_TRUE(&text != &lines || chunk.text.ends_with("cold.\n"));
    }
    EXPECT_TRUE(back == text);
  }
}

TEST_F(TokenizeFiles, NamesInputsThatCannotBeRead) {
  expect_error(ExitCode::data, {path("missing.txt"), "No such file"},
               [&] { tokenize({path("missing.txt")}, "t.bin"); });
  expect_error(ExitCode::data, {folder_.string(), "a directory"},
               [&] { tokenize({folder_.string()}, "t.bin"); });
  expect_error(ExitCode::usage, {"--input"}, [&] { tokenize({}, "t.bin"); });
  EXPECT_EQ(number_of_files(), 0U);
}

TEST_F(TokenizeFiles, LeavesEmptyInputsOutAmongOthers) {
  const auto good = write("good.txt", "text");
  const auto empty = write("empty.txt", "");
  testing::internal::CaptureStderr();

  EXPECT_EQ(tokenize({empty, good, empty}, "t.bin"), 5);

  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_NE(warnings.find(empty + "' is empty (0 bytes) and is left out"), std::string::npos)
      << warnings;
  EXPECT_EQ(text_of("t.bin"), "text|");
}

TEST_F(TokenizeFiles, NamesInputsThatAreAllEmpty) {
  const auto empty = write("empty.txt", "");
  const auto other = write("other.txt", "");

  expect_error(ExitCode::data, {empty, "an empty file"}, [&] {
    tokenize({empty, other}, "t.bin");
  });
  EXPECT_EQ(number_of_files(), 2U);
}

TEST_F(TokenizeFiles, NamesAnInputThatChangesWhileItIsRead) {
  constexpr std::size_t kBytes = 20 << 20;
  const auto input = write("in.txt", std::string(kBytes, 'x'));
  const auto change = [&](const std::function<void()>& how) {
    io::DocumentReader reader(input);
    (void)reader.next();
    how();
    for (io::DocumentReader::Chunk chunk; !chunk.ends_file;) chunk = reader.next();
  };

  expect_error(ExitCode::data, {input, "20971520 bytes", "10485760 bytes now"},
               [&] { change([&] { std::filesystem::resize_file(input, kBytes / 2); }); });
  expect_error(ExitCode::data, {input, "stays as it is", "10485761 bytes now"},
               [&] { change([&] { std::ofstream(input, std::ios::app) << 'y'; }); });
  expect_error(ExitCode::data, {input, "stays as it is"}, [&] {
    change([&] { std::fstream(input, std::ios::in | std::ios::out) << "other"; });
  });
}

TEST_F(TokenizeFiles, ReadsPipes) {
  const auto input = path("pipe");
  ASSERT_EQ(::mkfifo(input.c_str(), 0600), 0);
  std::jthread writer([&] { std::ofstream(input) << "one\n<|endoftext|>\ntwo"; });

  tokenize({input}, "t.bin");

  EXPECT_EQ(text_of("t.bin"), "one\n|two|");
}

TEST_F(TokenizeFiles, DecodingLeavesNothingIfStorageIsFull) {
  tokenize({write("in.txt", std::string(6 << 20, 'x'))}, "t.bin");
  const FileSizeLimit full(rlim_t{1} << 20);

  expect_error(ExitCode::storage, {path("back.txt"), "free space"}, [&] { decoded_file("t.bin"); });
  EXPECT_EQ(number_of_files(), 2U);
}

TEST_F(TokenizeFiles, LeavesNothingIfStorageIsFull) {
  const auto input = write("in.txt", std::string(6 << 20, 'x'));
  write("old.bin", "old");

  for (const char* output : {"t.bin", "t.npy", "t.h5", "old.bin"}) {
    // BackwardPart of the ids; of an .h5 all ids, but not what HDF5 adds to them.
    for (const rlim_t limit : {rlim_t{6} << 20, rlim_t{12} << 20}) {
      const FileSizeLimit full(limit);
      expect_error(ExitCode::storage, {path(output), "File too large", "free space"},
                   [&] { tokenize({input}, output); });
    }
  }

  EXPECT_EQ(number_of_files(), 2U);
  EXPECT_EQ(content("old.bin"), "old");
}

TEST_F(TokenizeFiles, NamesOutputsThatCannotBeWritten) {
  const auto input = write("in.txt", "x");
  std::filesystem::create_directory(folder_ / "folder.npy");

  expect_error(ExitCode::storage, {path("no/t.bin"), "No such file or directory"},
               [&] { tokenize({input}, "no/t.bin"); });
  expect_error(ExitCode::storage, {path("folder.npy"), "Is a directory"},
               [&] { tokenize({input}, "folder.npy"); });
  expect_error(ExitCode::storage, {path("in.txt/t.h5"), "Not a directory"},
               [&] { tokenize({input}, "in.txt/t.h5"); });
  expect_error(ExitCode::usage, {path("t.tokens")}, [&] { tokenize({input}, "t.tokens"); });
  EXPECT_EQ(number_of_files(), 2U);
}

}  // namespace
}  // namespace hyperslab::test
