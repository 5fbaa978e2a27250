// A cell's programs as the engine takes them, read from the numbers that src/zstate/backends/encoding.py
// writes.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine/engine.h"

namespace zstate {

// Everything that a CellProgram points at. Throws std::invalid_argument for numbers that are no program.
class CellTables {
 public:
  CellTables(const std::int64_t* words, std::size_t word_count, const double* numbers,
             std::size_t number_count);
  CellTables(const CellTables&) = delete;  // its program points into it
  CellTables& operator=(const CellTables&) = delete;

  const CellProgram& program() const { return cell_; }
  bool gradient() const { return gradient_; }

 private:
  struct Reader;
  void read(Reader& reader);
  const Program* read_program(Reader& reader);
  void read_stage(Reader& reader, CellStage& stage, int first_mean);
  std::vector<GateOperand>& read_pairs(Reader& reader);

  struct Text {
    std::vector<Place> places;
    std::vector<Number> numbers;
    std::vector<Instruction> code;
    std::vector<Output> outputs;
    Program program;
  };
  CellProgram cell_{};
  bool gradient_ = false;
  std::deque<Text> texts_;  // which stay where they are
  std::deque<std::vector<GateProduct>> products_;
  std::deque<std::vector<GateOperand>> pairs_;
};

}  // namespace zstate
