"""Other ways to search the answers of a run: the entry points of `engines`.

int8         matrices of 8 bits in the package's own search
bfloat16     matrices in bfloat16 in the same
ctranslate2  CTranslate2, through an export that is made once
draft        a small run proposes tokens, and the run itself accepts or corrects them
"""
