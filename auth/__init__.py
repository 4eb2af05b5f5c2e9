"""Who is calling: key sets (JWKS) and JSON Web Tokens in, a `Principal` out."""
