"""The warp-group matrix instruction for a given number of rows, as a function of the kernel's text.

Its accumulators are operands of one assembler statement each, so their number is part of the text.
"""

from __future__ import annotations

_SHAPES = {
    "bfloat16": ("k16", "bf16"),
    "float16": ("k16", "f16"),
    "tf32": ("k8", "tf32"),
}


def wgmma(rows: int, kind: str) -> str:
    """Two functions ``wgmma``: sum[64 columns, rows] (+)= 32 bytes of K of weight times operand.

    The weight comes from registers, or from shared memory as the operand does.
    """
    depth, name = _SHAPES[kind]
    sums = rows // 2
    turned = {"held": ",0", "stored": ",0,0"} if kind != "tf32" else {"held": "", "stored": ""}
    listed = ",".join(f"%{k}" for k in range(sums))
    outputs = ",".join(f'"+f"(sum[{k}])' for k in range(sums))

    def function(weight: str, operands: str, inputs: str, count: int, turn: str) -> str:
        x, keep = sums + count, sums + count + 1
        return (
            f"ZS_DEVICE void wgmma(float (&sum)[{sums}], {weight}, "
            f"unsigned long long x, bool keep) {{\n"
            f'  asm volatile("{{.reg .pred p; setp.ne.b32 p,%{keep},0; '
            f"wgmma.mma_async.sync.aligned.m64n{rows}{depth}.f32.{name}.{name} "
            f'{{{listed}}},{operands},%{x},p,1,1{turn};}}" '
            f': {outputs} : {inputs},"l"(x),"r"(static_cast<int>(keep)));\n}}\n'
        )

    held = ",".join(f"%{sums + k}" for k in range(4))
    words = ",".join(f'"r"(weight[{k}])' for k in range(4))
    return function(
        "const unsigned (&weight)[4]", f"{{{held}}}", words, 4, turned["held"]
    ) + function("unsigned long long weight", f"%{sums}", '"l"(weight)', 1, turned["stored"])
