import fractions
import json

import companion

print(json.whose, companion.name, fractions.Fraction(1, 2))
